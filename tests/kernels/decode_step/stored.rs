//! What is read of keys, and of index keys and queries, that are stored as records.

use reference::{Numerics, Site, Tensor};
use ulplab::formats::{codec, hadamard};
use ulplab_decode_step::Formats;

/// Replaces keys, and index keys and queries, by what is read of their records.
pub(super) fn read_of_records(formats: Formats, site: &Site, tensor: &mut Tensor<f32>) {
    let rounded = |data: &mut [f32]| data.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
    let round = |format: &str, data: &mut [f32], cols| codec(format).unwrap().round(data, cols);
    let data = &mut tensor.data[..];
    match (formats.record, formats.index, site.name) {
        (Some(record), _, name) if name.starts_with("attention.kv.") => {
            round(record, data, 512);
            rounded(data);
        }
        (_, Some("index_fp8"), "attention.indexer.query") => round("e4m3/b128:e8m0(act_quant)", data, 128),
        (_, Some("index_mxfp4"), "attention.indexer.query") => {
            hadamard(data, 128).unwrap();
            round("e2m1/b32:e8m0(fp4_act_quant)", data, 128);
        }
        (_, Some(index), "attention.indexer.key") => {
            if index == "index_mxfp4" {
                hadamard(data, 128).unwrap();
            }
            round(index, data, 128);
        }
        _ => {}
    }
}

/// The reference with keys that are records; index keys are stored only once they are all there.
pub(super) struct Stored<'a>(pub Option<&'a str>);

impl Numerics<f32> for Stored<'_> {
    fn site(&mut self, site: &Site, tensor: &mut Tensor<f32>) {
        let formats = self.0.map_or(Formats::F32, |record| Formats::F32.with_record(record));
        read_of_records(formats, site, tensor);
    }
}
