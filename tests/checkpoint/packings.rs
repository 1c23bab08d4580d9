//! Codes in words.

use safetensors::Dtype;
use ulplab_checkpoint::checkpoint::Packing;
use ulplab_checkpoint::checkpoint::config::Scheme;
use ulplab_checkpoint::checkpoint::parts::Parts;
use ulplab_checkpoint::checkpoint::words::Words;
use ulplab_core::formats::Group;
use ulplab_core::tensorfile::Tensor;

/// A matrix of 8 outputs and 8 inputs, whose code is the output plus the input, mod 16.
fn read(packing: Packing, shape: &[usize], pack: impl Fn(usize, usize) -> u32) {
    let words: Vec<u8> = (0..8)
        .flat_map(|word| {
            (0..8)
                .fold(0u32, |sum, place| sum | ((pack(word, place) % 16) << (4 * place)))
                .to_le_bytes()
        })
        .collect();
    let scales = vec![0u8; 32];
    let want = if packing == Packing::Rows { [8, 1] } else { [1, 8] };
    let tensor = |name, dtype, shape, bytes| Tensor {
        name,
        dtype,
        shape,
        bytes,
    };
    let parts = Parts {
        codes: Some(tensor("w.qweight", Dtype::I32, shape, &words)),
        scale: Some(tensor("w.scales", Dtype::F32, &want, &scales)),
        ..Parts::default()
    };
    let scheme = Scheme {
        element: "int",
        bits: 4,
        group: Some(Group::block(8)),
        symmetric: None,
        inputs: None,
    };
    let words = Words::new(&parts, packing, Some(scheme)).unwrap();
    for (output, input) in (0..8).flat_map(|output| (0..8).map(move |input| (output, input))) {
        assert_eq!(
            words.code(output, input, false),
            (output + input) as u32 % 16,
            "{packing:?}"
        );
    }
}

#[test]
fn codes_are_where_each_program_puts_them() {
    read(Packing::Inputs, &[1, 8], |output, input| (output + input) as u32);
    read(Packing::Rows, &[8, 1], |output, input| (output + input) as u32);
    // AutoAWQ's order_map.
    read(Packing::Outputs, &[8, 1], |input, place| {
        ([0, 2, 4, 6, 1, 3, 5, 7][place] + input) as u32
    });
}
