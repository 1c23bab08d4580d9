//! CUDA launches of a decode step of a whole model: the list of variants (kernel implementations), and the code they share.

mod model;
mod persistent;
mod served;

use std::fmt::Display;

use ulplab_backend::cuda::Compositions;
use ulplab_backend::cuda::graph::{Graph, Put, call, ceil, kernel};

use model::model;
use persistent::persistent;
use served::served;

/// Launch sequences (compositions) of all variants of `decode_step`, and the operations whose kernels they launch.
pub const COMPOSITIONS: Compositions = Compositions {
    op: "decode_step",
    calls: "compressor experts fp8_gemm hyper_head index_records index_scores linear mhc_post mhc_pre moe_fp4 record_attention \
        record_write rmsnorm rope router sample sparse_attention top_k",
    variants: &[
        ("simple", |g| model(g, Keys::Numbers, false)),
        ("records", |g| model(g, Keys::Records, false)),
        ("indexed", |g| model(g, Keys::Indexed, false)),
        ("persistent", persistent),
        ("w8a8", |g| model(g, Keys::Numbers, true)),
        ("w8a8_records", |g| model(g, Keys::Records, true)),
        ("w8a8_indexed", |g| model(g, Keys::Indexed, true)),
        ("served", |g| served(g, false)),
        ("served_many", |g| served(g, true)),
    ],
};

/// Form in which a variant stores the KV cache: f32 numbers, or KV records (quantized vectors in pages).
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Keys {
    Numbers,
    /// KV records in pages.
    Records,
    /// KV records in pages; the keys of the indexer are also records in pages.
    Indexed,
}

/// Builder of the CUDA graph of a decode step; `of` holds the options of the variant.
struct Step<'g, 'a, Variants> {
    g: &'g mut Graph<'a>,
    layer: i64,
    of: Variants,
}

/// Names of buffers that hold one section for each layer. The next constants name buffers with one section for each bank of
/// experts (the experts of one layer), for each sparse layer (attention to selected compressed entries, CSA), and for each heavy
/// layer (attention to all compressed entries, HCA).
const OF_LAYERS: &str = "attn_fn attn_base attn_scale attn_norm q_a q_a_scales q_norm q_b q_b_scales kv kv_scales kv_norm sinks o_a \
    o_a_scales o_b o_b_scales moe_fn moe_base moe_scale moe_norm gate gate_scales bias window window_pages shared_gate_up \
    shared_gate_up_scales shared_down shared_down_scales";
const OF_BANKS: &str = "gate_up gate_up_scales gate_up_level down down_scales down_level";
const OF_SPARSE: &str = "csa_kv csa_kv_scales csa_gate csa_gate_scales csa_ape csa_norm csa_ring_kv csa_ring_gate csa_entries csa_pages \
    index_q index_q_scales index_kv index_kv_scales index_gate index_gate_scales index_ape index_norm index_ring_kv index_ring_gate \
    index_entries index_pages index_heads index_heads_scales";
const OF_HEAVY: &str =
    "hca_kv hca_kv_scales hca_gate hca_gate_scales hca_ape hca_norm hca_ring_kv hca_ring_gate hca_entries hca_pages";

impl<'g, 'a, Variants> Step<'g, 'a, Variants> {
    fn new(g: &'g mut Graph<'a>, of: Variants) -> Result<Self, String> {
        let [b, c, d, hd, hi, di, wide, ns] = g.sizes(["B", "C", "D", "HD", "HI", "DI", "wide", "Ns"]);
        let [chosen, r, experts, topk] = g.sizes(["K", "R", "E", "topk"]);
        for (columns, names) in [
            (wide, "x"),
            (c, "normed out"),
            (4, "post"),
            (16, "comb"),
            (g.n("Rq"), "low low_normed"),
            (hd, "raw_query query heads"),
            (d, "raw_kv kv_row"),
            (2 * d.max(di), "values logits_of_slots"),
            (3 * d.max(di), "stages"),
            (hi * di, "index_query"),
            (hi, "head_weights"),
            (ns, "scores"),
            (topk, "chosen"),
            (g.n("G") * g.n("Ro"), "low_heads"),
            (experts, "expert_logits"),
            (chosen, "expert expert_weight"),
            (g.n("V"), "row_logits"),
            (r / 2, "cos_t sin_t"),
            (1, "sampled sparse_count heavy_count"),
        ] {
            g.scratch(names, b * columns * 4)?;
        }
        for (name, meaning) in [("dtype", "f32"), ("out", "f32"), ("T", "B"), ("norm_eps", "eps")] {
            g.with(name, meaning);
        }
        Ok(Self { g, layer: 0, of })
    }

    fn put(&mut self, put: Put) -> Result<(), String> {
        self.g.put(put)
    }

    fn n(&self, name: &str) -> i64 {
        self.g.n(name)
    }

    /// Allocates the scratch buffers for variants that store the KV cache as records.
    fn records(&mut self) -> Result<(), String> {
        let [b, d, ns, nh] = self.g.sizes(["B", "D", "Ns", "Nh"]);
        self.g.scratch("row", b * d * 2)?;
        self.g.scratch("unread", b * ns.max(nh) * d * 4)?;
        self.g
            .scratch("window_count chosen_count window_at csa_at hca_at", b * 4)
    }

    /// Allocates the scratch buffers for variants that store index keys as records. Index keys have as many pages as compressed
    /// KV entries: an entry and its index key have the same slot number.
    fn indexed(&mut self) -> Result<(), String> {
        let [b, hi, di, pages] = self.g.sizes(["B", "HI", "DI", "csa_pages_of_row"]);
        self.g.scratch("index_table", b * pages * 4)?;
        self.g.scratch("coded_query", b * hi * di * 2)
    }

    /// Allocates the scratch buffers for the quantized inputs of attention's projections: 8-bit codes and their scales.
    fn eight(&mut self) -> Result<(), String> {
        let [c, rq, hd, groups, ro, b] = self.g.sizes(["C", "Rq", "HD", "G", "Ro", "B"]);
        for (name, columns, scales) in [
            ("input", c, ceil(c, 128)),
            ("low", rq, ceil(rq, 128)),
            ("heads", hd, groups * ceil(hd / groups, 128)),
            ("low_heads", groups * ro, ceil(groups * ro, 128)),
        ] {
            self.g.scratch(&format!("{name}_codes"), b * columns)?;
            self.g.scratch(&format!("{name}_scales"), b * scales * 4)?;
        }
        Ok(())
    }

    /// Adds the first launch of a step: it computes the residual streams and RoPE angles of the tokens, and the numbers of
    /// complete compressed KV entries of each row, for sparse and for heavy layers.
    fn begin(&mut self) -> Result<(), String> {
        let begin = kernel("begin", "decode_step_begin").on([ceil(self.n("C"), 512), self.n("B")], 128);
        let args = "token position embedding cos sin x cos_t sin_t sparse_count heavy_count C R ms mh";
        self.g.put(begin.args(args))
    }

    /// Returns the launch that computes, for each row, the number of keys that attention reads, and the cache slots to which the
    /// KV vectors of the token are written.
    fn places(&self) -> Put {
        kernel("places", "decode_step_places").on([ceil(self.n("B"), 128)], 128).args(
            "position window_count chosen_count window_at csa_at hca_at B Wn topk ms mh window_pages_of_row csa_pages_of_row \
             hca_pages_of_row",
        )
    }

    fn table(&self) -> Put {
        let pages = self.n("B") * self.n("csa_pages_of_row");
        let table = kernel("table", "decode_step_table").on([ceil(pages, 128)], 128);
        table.args("index_table pages").with("pages", pages)
    }

    /// Selects the current layer: in later launches, the names of weights and caches stand for the sections of this layer in the
    /// buffers.
    fn enter(&mut self, layer: i64) {
        let [lead, hashes] = self.g.sizes(["lead", "hashes"]);
        self.layer = layer;
        self.g.at(layer, OF_LAYERS);
        self.g.at(layer, OF_BANKS);
        self.g.at(self.sparse_layer(), OF_SPARSE);
        self.g.at(layer.min(lead) + (layer - lead).max(0) / 2, OF_HEAVY);
        self.g.at(layer.min(hashes.max(1) - 1), "table");
    }

    /// True if attention of the layer reads selected entries (top-k).
    fn is_sparse(&self) -> bool {
        self.layer >= self.n("lead") && (self.layer - self.n("lead")) % 2 == 0
    }

    fn sparse_layer(&self) -> i64 {
        (self.layer - self.n("lead")) / 2
    }

    /// Adds a launch that copies each row of `from`, which has `columns` columns, to the output buffer of a site (a named tensor
    /// of the model). The test compares this buffer with the reference.
    fn tap(&mut self, from: &str, site: &str, columns: impl Display) -> Result<(), String> {
        self.tap_at((self.layer, "layers"), from, site, columns)
    }

    /// Same as [`Self::tap`], for a site that only sparse layers have.
    fn tap_sparse(&mut self, from: &str, site: &str, columns: impl Display) -> Result<(), String> {
        self.tap_at((self.sparse_layer(), "sparse"), from, site, columns)
    }

    /// Same as [`Self::tap`], for a site (named tensor) that only some layers have. `of` holds the index of the current layer
    /// among these layers, and the number of these layers.
    fn tap_at(&mut self, of: (i64, impl Display), from: &str, site: &str, columns: impl Display) -> Result<(), String> {
        let from = format!("from = {from}, columns = {columns}, stride = {columns}, first = 0");
        self.tap_part(of, &from, site)
    }

    /// Adds a launch that copies the compressed KV entry of the layer to its output buffer, for comparison with the reference.
    /// The entry is the last of the three vectors in `stages`.
    fn tap_entry(&mut self) -> Result<(), String> {
        let d = self.n("D");
        let from = format!("from = stages, columns = D, stride = {}, first = {}", 3 * d, 2 * d);
        self.tap_part((self.layer, "layers"), &from, "kv_compressed")
    }

    /// Adds a launch that copies the index key of the layer to its output buffer, for comparison with the reference. The key is
    /// the last of the three vectors in `from`.
    fn tap_index_key(&mut self, from: &str) -> Result<(), String> {
        let d = self.n("DI");
        let from = format!("from = {from}, columns = DI, stride = {}, first = {}", 3 * d, 2 * d);
        self.tap_part((self.sparse_layer(), "sparse"), &from, "index_key")
    }

    /// Adds a launch that copies some columns of each row to the output buffer of a site (named tensor). `from` gives buffer,
    /// number of columns, stride of rows and first column, e.g. `from = x, columns = C, stride = C, first = 0`.
    fn tap_part(&mut self, (layer, layers): (i64, impl Display), from: &str, site: &str) -> Result<(), String> {
        let tap = kernel(&format!("tap_{site}"), "decode_step_tap").on([self.n("B")], 128);
        let tap = tap.args("from to clock layer layers B S columns stride first").tap();
        let to = format!("to = at_{site}, layer = {layer}, layers = {layers}");
        self.g.put(tap.names(from).names(&to))
    }

    /// Adds launches that copy the 8-bit codes of an activation (as words of four codes) and its scales to output buffers, for
    /// comparison with the reference.
    fn tap_codes(&mut self, codes: &str, site: &str, columns: i64, scales: i64) -> Result<(), String> {
        self.tap(&format!("{codes}_codes"), &format!("{site}_codes"), columns / 4)?;
        self.tap(&format!("{codes}_scales"), &format!("{site}_scales"), scales)
    }

    /// Adds the last launches of a decode step: they copy the logits to the output, sample the next token with the variant
    /// `sample`, and advance the positions.
    fn end(&mut self, sample: &str) -> Result<(), String> {
        let [b, vocabulary] = self.g.sizes(["B", "V"]);
        let keep = kernel("keep_logits", "decode_step_keep").on([b, ceil(vocabulary, 1024)], 256);
        self.g.put(keep.args("row_logits logits clock B S V"))?;
        self.g
            .put(call("next", sample).names("logits = row_logits, token = sampled"))?;
        self.g.put(end())
    }
}

/// Returns the last launch of a decode step: the sampled token, or a given one (`forced`), becomes the input of the next step.
fn end() -> Put {
    let end = kernel("end", "decode_step_end").on([1], 256);
    end.args("sampled forced clock token position tokens B S P")
}
