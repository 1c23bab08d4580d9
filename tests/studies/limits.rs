//! Sizes of memory.

use ulplab::studies::limits::Bytes;

#[test]
fn sizes_are_read_and_written() {
    for (text, bytes, written) in [
        ("1", 1.0, "1 B"),
        ("512M", 536_870_912.0, "512 MiB"),
        ("16G", 17_179_869_184.0, "16 GiB"),
        ("1.5gib", 1_610_612_736.0, "1.5 GiB"),
        ("2KB", 2048.0, "2.0 KiB"),
    ] {
        let read: Bytes = text.parse().expect(text);
        assert_eq!(read, Bytes(bytes));
        assert_eq!(read.to_string(), written);
    }
    for text in ["", "G", "-1G", "0", "NaN", "inf", "1X", "1e400"] {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
}
