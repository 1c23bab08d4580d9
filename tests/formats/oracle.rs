//! What the tests compare against: fixtures, and a slow rounding that shares nothing with the library's.

use std::collections::HashMap;
use std::sync::OnceLock;

use safetensors::{Dtype, SafeTensors};

/// The content of a file below `tests/fixtures`, which is stored compressed by zstd.
pub fn stored(file: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/{file}.zst", root());
    let bytes = std::fs::read(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
    zstd::decode_all(&bytes[..]).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// The tensors of one fixture file.
pub struct Fixture {
    tensors: HashMap<String, (Vec<usize>, Vec<u8>, Dtype)>,
}

impl Fixture {
    pub fn open(name: &str) -> Self {
        Self::of("quant", name)
    }

    /// A file of one of the folders of fixtures.
    pub fn of(folder: &str, name: &str) -> Self {
        let bytes = stored(&format!("{folder}/{name}.safetensors"));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec(), view.dtype())))
            .collect();
        Self { tensors }
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub fn shape(&self, name: &str) -> &[usize] {
        &self.tensors[name].0
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no tensor '{name}'")).1
    }

    /// f32 as they are, bf16 and its bits as u16.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let (_, bytes, dtype) = &self.tensors[name];
        match dtype {
            Dtype::F32 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
            Dtype::U16 | Dtype::BF16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32())
                .collect(),
            other => panic!("'{name}' is {other:?}"),
        }
    }
}

pub fn root() -> String {
    std::env::var("CARGO_MANIFEST_DIR").unwrap()
}

/// Values of all codes of an element, as ml_dtypes has them.
pub fn table(element: &'static str) -> &'static [f32] {
    static TABLES: OnceLock<HashMap<&str, Vec<f32>>> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        let file = Fixture::open("decode_tables");
        ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "ue4m3", "mxint8", "e8m0"]
            .into_iter()
            .map(|name| (name, file.floats(name)))
            .collect()
    });
    &tables[element]
}

/// The code nearest to `x` of all finite ones, ties to the even code, −0 for what underflows from below: by search.
pub fn nearest(element: &'static str, x: f64) -> u8 {
    let table = table(element);
    let sign = if x.is_sign_negative() { table.len() / 2 } else { 0 };
    let codes = (0..table.len() / 2).filter(|code| table[*code].is_finite());
    // Beyond all finite values, but not so far that distances round to the same.
    let magnitude = x.abs().min(1e6);
    let distance = |code: usize| (f64::from(table[code]) - magnitude).abs();
    let best = codes
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2))))
        .unwrap();
    (sign + best) as u8
}

/// Uniform numbers in `0.0..1.0`, the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn uniform(&mut self) -> f64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, with a magnitude that changes every 8 values, and a zero now and then.
    pub fn values(&mut self, len: usize) -> Vec<f32> {
        let mut magnitude = 1.0;
        (0..len)
            .map(|i| {
                if i % 8 == 0 {
                    magnitude = (self.uniform() * 12.0 - 6.0).exp2();
                }
                let normal = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
                if self.uniform() < 0.02 {
                    0.0
                } else {
                    (normal * magnitude) as f32
                }
            })
            .collect()
    }
}
