//! Finds the scales of a tensor by name, and derives from their shape the size of the blocks that share a scale.

use safetensors::Dtype;

use super::super::decode::{PAIRS, SCALED, SCALES, block};
use super::super::{Error, Problem};
use super::Safetensors;
use crate::tensorfile::{Tensor, type_names};

impl Safetensors {
    /// Returns the tensor of scales of a weight, and the size of the block that one scale covers; `None` if the type of the
    /// weight needs no scale.
    pub(super) fn scale_of(&self, name: &str, weight: &Tensor) -> Result<Option<(Tensor<'_>, Vec<usize>)>, Error> {
        let packed = PAIRS.contains(&weight.dtype);
        if !SCALED.contains(&weight.dtype) && !packed {
            return Ok(None);
        }
        let wrong = |message: String| Err(self.wrong(name, weight, Problem::Scale(message)));
        let found = self.scales(name);
        let (scale_name, scale) = match &found[..] {
            [] => {
                let names = match &possible_scales(name)[..] {
                    [a, b] => format!("neither '{a}' nor '{b}'"),
                    names => format!("none of '{}'", names.join("', '")),
                };
                return wrong(format!("tensor '{name}' is {}, but has {names}", weight.dtype));
            }
            [(name, scale)] => (name, *scale),
            [(first, ..), (second, ..), ..] => {
                return wrong(format!("tensor '{name}' has two scales, '{first}' and '{second}'"));
            }
        };
        if packed {
            return Ok(Some((scale, vec![1, 32])));
        }
        if !SCALES.contains(&scale.dtype) {
            let (found, expected) = (scale.dtype, type_names(SCALES));
            return wrong(format!("scale '{scale_name}' is {found}, expected {expected}"));
        }
        match block(weight.shape, scale.shape, self.block) {
            // U8 scales are read as E8M0, but only for blocks of 32 columns (MXFP8): such files usually store E8M0 as U8.
            Some(block) if scale.dtype == Dtype::U8 && block != [1, 32] => wrong(format!(
                "scale '{scale_name}' is U8, which is read as E8M0 of 32 columns of a row only, but it is {:?} of {:?}",
                scale.shape, weight.shape
            )),
            Some(block) => Ok(Some((scale, block))),
            None => {
                let blocks = match self.block {
                    Some([rows, cols]) => format!("{rows} × {cols} (weight_block_size of config.json)"),
                    None => "128 × 128".into(),
                };
                wrong(format!(
                    "scale '{scale_name}' is {:?}, which is neither one per tensor, per row, per block of columns, nor per {blocks} of \
                     {:?}",
                    scale.shape, weight.shape
                ))
            }
        }
    }

    /// Finds the codes and scales of a stack of matrices `[count, inputs, outputs]` that is stored in MXFP4, and returns them
    /// with the shape of the scales. Returns `None` if the file has the tensor itself, if the file has no MXFP4 blocks for this
    /// tensor, or if `shape` does not have three sizes.
    pub(super) fn mxfp4(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<(Tensor<'_>, Tensor<'_>, [usize; 3])>, Error> {
        let [blocks_name, scales_name] = mxfp4_names(name);
        let Some(codes) = self.files.get(&blocks_name).filter(|_| self.entry(name).is_none()) else {
            return Ok(None);
        };
        let [count, inputs, outputs] = *shape else {
            return Ok(None);
        };
        let sizes = [count, outputs, inputs / 32];
        let scales = self.files.get(&scales_name);
        let scales = scales.ok_or_else(|| self.missing(&scales_name, &sizes))?;
        let expected = [
            (&blocks_name, codes, [&sizes[..], &[16]].concat()),
            (&scales_name, scales, sizes.to_vec()),
        ];
        for (name, stored, expected) in expected {
            if stored.dtype != Dtype::U8 {
                return Err(self.wrong_type(name, &stored, &[Dtype::U8]));
            }
            if stored.shape != expected || !inputs.is_multiple_of(32) {
                let found = stored.shape.into();
                return Err(self.wrong(name, &stored, Problem::Shape { found, expected }));
            }
        }
        Ok(Some((codes, scales, sizes)))
    }

    /// Returns the stored scales of a tensor, each with the name that models use.
    pub(super) fn scales(&self, name: &str) -> Vec<(String, Tensor<'_>)> {
        let names = possible_scales(name).into_iter();
        names
            .filter_map(|name| Some((name.clone(), self.entry(&name)?)))
            .collect()
    }
}

/// Returns the names of the two tensors that store a tensor in MXFP4: the blocks of codes, and the scales.
pub(super) fn mxfp4_names(name: &str) -> [String; 2] {
    [format!("{name}_blocks"), format!("{name}_scales")]
}

/// Returns all names that the scale of a tensor may have.
pub(super) fn possible_scales(name: &str) -> Vec<String> {
    let mut names = vec![format!("{name}_scale"), format!("{name}_scale_inv")];
    names.extend(name.strip_suffix(".weight").map(|stem| format!("{stem}.scale")));
    names
}
