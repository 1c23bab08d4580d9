//! Files that users name.

use ulplab_core::Exit;
use ulplab_core::input::{bytes, bytes_up_to, text};

#[test]
fn what_is_no_text_or_no_file_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, b"name = 1\nx = \xff\n").unwrap();
    let error = text(&file).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("is not UTF-8 text: byte 13 (line 2) is 0xff"),
        "{error}"
    );
    assert_eq!(error.exit(), Exit::Usage);
    let error = bytes(folder.path()).unwrap_err();
    assert!(error.to_string().ends_with("is a folder, expected a file"), "{error}");
    let error = bytes(&folder.path().join("none")).unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    assert_eq!(bytes_up_to(&file, 14).unwrap(), Err(15));
    assert_eq!(bytes_up_to(&file, 15).unwrap(), Ok(bytes(&file).unwrap()));
    let error = bytes("/dev/zero".as_ref()).unwrap_err();
    assert!(error.to_string().contains("expected a regular file"), "{error}");
}
