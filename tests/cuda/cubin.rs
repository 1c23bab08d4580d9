//! What machine code says of itself.

use std::collections::BTreeMap;

use ulplab::backend::cuda::cubin::{Entry, attributes, entries, report};
use ulplab::backend::cuda::toolkit::Cubin;

const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'beta' for 'sm_90a'
ptxas info    : Function properties for beta
ptxas         .     800 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 155 registers, used 0 barriers, 800 bytes cumulative stack size
ptxas info    : Compiling entry function 'alpha' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 256 bytes smem";

#[test]
fn the_log_is_read_kernel_by_kernel() {
    let mut entries = BTreeMap::from(["alpha", "beta"].map(|name| (name.to_string(), Entry::default())));
    report(LOG, &mut entries);
    let of = |name: &str| {
        let entry = &entries[name];
        [entry.registers, entry.spilled, entry.stack, entry.shared]
    };
    assert_eq!([of("alpha"), of("beta")], [[14, 0, 0, 256], [155, 12, 800, 0]]);
}

/// The section of `alpha(float *x, int n, float s)`, and of a kernel with `__launch_bounds__(128)`, by NVRTC 13.0.
#[test]
fn parameters_and_bounds_are_read_from_a_section() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let alpha = words(&[
        0x0437_0400,
        0x8200_0000,
        0x0417_0c00,
        0,
        0x0200_0c00,
        0x00f0_1100,
        0x0417_0c00,
        0,
        0x0100_0800,
        0x00f0_1100,
        0x0417_0c00,
        0,
        0,
        0x00f0_2100,
        0x0350_0000,
        0x031b_ff00,
    ]);
    assert_eq!(attributes(&alpha).parameters, [8, 4, 4]);
    assert_eq!(attributes(&alpha).max_threads, None);
    let beta = words(&[0x0350_0000, 0x0405_0c00, 0x8000_0000, 0x0100_0000, 0x0100_0000]);
    assert_eq!(attributes(&beta).max_threads, Some(128));
    for len in 0..alpha.len() {
        attributes(&alpha[..len]);
    }
}

#[test]
fn what_is_no_machine_code_is_an_error() {
    for bytes in [&b""[..], b"\x7fELF\x02\x01", &[0x7f; 100], b"not ELF at all"] {
        let cubin = Cubin {
            bytes: bytes.to_vec(),
            log: String::new(),
        };
        assert!(entries(&cubin).is_err());
    }
}
