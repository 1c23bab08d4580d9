mod elements {
    use ulplab::formats::ELEMENTS;

    #[test]
    fn every_code_survives_decode_and_encode() {
        for element in ELEMENTS {
            for code in 0..=(1u32 << element.bits) - 1 {
                let value = element.decode(code as u16);
                let again = element.encode(value);
                if value.is_nan() {
                    assert!(element.decode(again).is_nan(), "{} {code:#x}", element.name);
                } else if value.is_finite() && code != 0x80 {
                    assert_eq!(u32::from(again), code, "{} {code:#x} {value}", element.name);
                }
            }
        }
    }
}
