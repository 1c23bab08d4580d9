//! Variants whose launches are put together in Rust: models of many operations, and loops over events. Each has a head without launches
//! in the header of its operation.

mod decode_step;
mod delta_handover;
mod swap_ffn;

use std::path::Path;
use std::sync::Arc;

use crate::cuda::graph::{Callable, Composed, Composition};
use crate::cuda::header::{Header, Sum};
use ulplab_core::input;

use decode_step::{Keys, model, persistent, served};

/// Operation, variant, and what puts its launches together.
pub const COMPOSITIONS: &[(&str, &str, Composition)] = &[
    ("decode_step", "simple", |g| model(g, Keys::Numbers, false)),
    ("decode_step", "records", |g| model(g, Keys::Records, false)),
    ("decode_step", "indexed", |g| model(g, Keys::Indexed, false)),
    ("decode_step", "persistent", persistent),
    ("decode_step", "w8a8", |g| model(g, Keys::Numbers, true)),
    ("decode_step", "w8a8_records", |g| model(g, Keys::Records, true)),
    ("decode_step", "w8a8_indexed", |g| model(g, Keys::Indexed, true)),
    ("decode_step", "served", |g| served(g, false)),
    ("decode_step", "served_many", |g| served(g, true)),
    ("delta_handover", "pointer", |g| delta_handover::handover(g, false)),
    ("delta_handover", "turned", |g| delta_handover::handover(g, true)),
    ("swap_ffn", "simple", swap_ffn::simple),
    ("swap_ffn", "unfused", swap_ffn::unfused),
    ("swap_ffn", "cublaslt", |g| swap_ffn::cublaslt(g, Sum::F32)),
    ("swap_ffn", "cublaslt_bf16", |g| swap_ffn::cublaslt(g, Sum::Bf16)),
    ("swap_ffn", "fused", |g| swap_ffn::fused(g, false)),
    ("swap_ffn", "programmatic", |g| swap_ffn::fused(g, true)),
    ("swap_ffn", "persistent", |g| swap_ffn::persistent(g, 4)),
    ("swap_ffn", "persistent_many", |g| swap_ffn::persistent(g, 1)),
    ("swap_ffn", "cublaslt_fp8", |g| swap_ffn::cublaslt(g, Sum::F32)),
    ("swap_ffn", "fp8", |g| swap_ffn::fused(g, true)),
    ("swap_ffn", "fp8_persistent", |g| swap_ffn::persistent(g, 4)),
    ("swap_ffn", "fp8_persistent_many", |g| swap_ffn::persistent(g, 1)),
];

/// Operations whose variants the compositions of an operation call.
const CALLED: &[(&str, &str)] = &[(
    "decode_step",
    "compressor experts fp8_gemm hyper_head index_records index_scores linear mhc_post mhc_pre moe_fp4 record_attention record_write \
     rmsnorm rope router sample sparse_attention top_k",
)];

/// Gives the variants of a header their compositions. `folder` has the files of the operations that are called.
pub(super) fn put(op: &str, header: &mut Header, folder: &Path) -> Result<(), String> {
    let own: Vec<_> = COMPOSITIONS.iter().filter(|(of, ..)| *of == op).collect();
    if own.is_empty() {
        return Ok(());
    }
    let mut callable = Callable::default();
    for op in CALLED
        .iter()
        .filter(|(of, _)| *of == op)
        .flat_map(|(_, called)| called.split_whitespace())
    {
        let text = input::text(&folder.join(format!("{op}.cu"))).map_err(|error| error.to_string())?;
        callable.add(op, &text)?;
    }
    let callable = Arc::new(callable);
    for &(_, name, composition) in own {
        let variant = header.variants.iter_mut().find(|variant| variant.name == name);
        let variant =
            variant.ok_or_else(|| format!("header: no variant '{name}'; expected the head of its composition"))?;
        if !variant.launches.is_empty() {
            return Err(format!(
                "header: variant '{name}' has launches, and a composition; expected one of them"
            ));
        }
        let callable = Arc::clone(&callable);
        variant.composed = Some(Composed { composition, callable });
    }
    Ok(())
}
