//! Variants (implementations) of the decode step with a separate launch for each operation. Each launch uses the simplest kernel
//! of the operation.

use std::fmt::Display;

use super::{Keys, Step};
use ulplab_backend::cuda::graph::{Graph, Put, call, ceil, kernel};

/// Adds the launches of a whole step. If `eight`, the projections of attention take 8-bit codes.
pub(super) fn model(g: &mut Graph, keys: Keys, eight: bool) -> Result<(), String> {
    let mut model = Step::new(g, Simple { keys, eight })?;
    model.prepare()?;
    for layer in 0..model.n("layers") {
        model.enter(layer);
        model.attention()?;
        model.experts()?;
    }
    let head = "fn = head_fn, base = head_base, scale = head_scale, weight = final_norm, y = normed";
    model.put(call("head_mix", "hyper_head.simple").names(head))?;
    model.put(linear("head_product", "normed", "head", "row_logits", "V", "C"))?;
    model.end("sample.simple")
}

struct Simple {
    keys: Keys,
    eight: bool,
}

/// Returns the launch of y = x·wᵀ, with weights of shape [N, K].
fn linear(name: &str, x: &str, w: &str, y: &str, n: impl Display, k: impl Display) -> Put {
    grouped(name, x, w, y, n, k).with("G", 1)
}

/// Returns the launch of y = x·wᵀ, where each group of columns of x has its own weights.
fn grouped(name: &str, x: &str, w: &str, y: &str, n: impl Display, k: impl Display) -> Put {
    let names = format!("x = {x}, w = {w}, w_scale = {w}_scales, y = {y}, N = {n}, K = {k}");
    call(name, "linear.simple").names(&names)
}

fn rope(name: &str, direction: &str, x: &str) -> Put {
    call(name, "rope.simple").names(&format!("direction = {direction}, x = {x}, cos = cos_t, sin = sin_t"))
}

/// Returns the launch of an RMSNorm of each row.
fn norm(name: &str, x: &str, weight: &str, y: &str, columns: &str) -> Put {
    let norm = call(name, "rmsnorm.simple").names(&format!("x = {x}, weight = {weight}, y = {y}"));
    norm.with("C", columns)
}

/// Returns the launch that encodes the vector of each row of the batch as a KV record, and writes it to the slot of this row.
fn write(name: &str, slots: &str, pages: &str, columns: &str) -> Put {
    call(name, "record_write.simple").names(&format!(
        "form = raw, x = row, weight = ones, positions = {slots}, cos_sin = cos, slots = {slots}, pages = {pages}, C = {columns}, \
         slot_bytes = 4"
    ))
}

impl Step<'_, '_, Simple> {
    fn has(&self, keys: Keys) -> bool {
        self.of.keys >= keys
    }

    /// Allocates scratch buffers, and adds the launches before the first layer.
    fn prepare(&mut self) -> Result<(), String> {
        if self.has(Keys::Records) {
            self.records()?;
        }
        if self.has(Keys::Indexed) {
            self.indexed()?;
        }
        if self.of.eight {
            self.eight()?;
        }
        self.begin()?;
        if self.has(Keys::Records) {
            self.put(self.places())?;
        }
        if self.has(Keys::Indexed) {
            self.put(self.table())?;
        }
        Ok(())
    }

    /// Adds the launch that computes a projection of attention, y = x·wᵀ. If the variant uses 8-bit activations, the launch reads
    /// `codes` instead of x.
    fn product(
        &mut self,
        name: &str,
        [x, codes, w, y]: [&str; 4],
        n: impl Display,
        k: impl Display,
    ) -> Result<(), String> {
        if !self.of.eight {
            return self.put(linear(name, x, w, y, n, k));
        }
        let codes = format!("x = {codes}_codes, x_scale = {codes}_scales");
        let names = format!("{codes}, w = {w}, w_scale = {w}_scales, y = {y}, N = {n}, K = {k}");
        self.put(call(name, "fp8_gemm.simple").names(&names))
    }

    /// Adds a launch that quantizes `rows` rows of `from` to codes with scales, if the variant uses 8-bit activations. `rows` may
    /// be a multiple of the batch size: each row of the batch is then quantized as several rows.
    fn code(
        &mut self,
        [from, codes, site]: [&str; 3],
        rows: i64,
        name: impl Display,
        columns: i64,
    ) -> Result<(), String> {
        if !self.of.eight {
            return Ok(());
        }
        let code = kernel(&format!("{codes}_code"), "decode_step_code_{activations}");
        let names = format!("from = {from}, codes = {codes}_codes, scales = {codes}_scales, columns = {name}");
        let code = code
            .on([ceil(columns, 128), rows], 32)
            .args("from codes scales columns");
        self.put(code.names(&names))?;
        let of_row = rows / self.n("B");
        self.tap_codes(codes, site, of_row * columns, of_row * ceil(columns, 128))
    }

    fn mix(&mut self, name: &str, of: &str) -> Result<(), String> {
        let names = format!("fn = {of}_fn, base = {of}_base, scale = {of}_scale, weight = {of}_norm, y = normed");
        self.put(call(name, "mhc_pre.simple").names(&names))
    }

    fn attention(&mut self) -> Result<(), String> {
        let [b, c, rq, h, groups, hd, ro] = self.g.sizes(["B", "C", "Rq", "H", "G", "HD", "Ro"]);
        self.mix("attn_mix", "attn")?;
        self.tap("normed", "attention_input", "C")?;
        self.code(["normed", "input", "attention_input"], b, "C", c)?;
        self.product("q_down", ["normed", "input", "q_a", "low"], "Rq", "C")?;
        self.put(norm("q_low_norm", "low", "q_norm", "low_normed", "Rq"))?;
        if self.of.eight {
            self.tap("low_normed", "low_query", "Rq")?;
        }
        self.code(["low_normed", "low", "low_query"], b, "Rq", rq)?;
        self.product("q_up", ["low_normed", "low", "q_b", "raw_query"], "HD", "Rq")?;
        self.put(norm("head_norm", "raw_query", "ones", "query", "D").with("T", b * h))?;
        self.put(rope("query_rope", "forward", "query"))?;
        self.tap("query", "query", "HD")?;
        self.product("kv_down", ["normed", "input", "kv", "raw_kv"], "D", "C")?;
        self.put(norm("kv_row_norm", "raw_kv", "kv_norm", "kv_row", "D"))?;
        self.put(rope("kv_rope", "forward", "kv_row").with("H", 1))?;
        self.tap("kv_row", "kv_window", "D")?;
        if self.has(Keys::Records) {
            self.row("push", "kv_row", "D", 0)?;
            self.put(write("window_write", "window_at", "window_pages", "D"))?;
        } else {
            let push = kernel("push", "decode_step_push").on([b], 128);
            self.put(push.args("kv_row position window Wn D"))?;
        }
        match self.is_sparse() {
            true => self.sparse()?,
            false => self.heavy()?,
        }
        self.put(rope("heads_rope", "inverse", "heads"))?;
        self.tap("heads", "heads", "HD")?;
        self.code(["heads", "heads", "heads"], b * groups, hd / groups, hd / groups)?;
        if self.of.eight {
            let down = kernel("o_down", "decode_step_group_products").on([1, ceil(ro, 64), b * groups], 128);
            let down = down.args("heads_codes heads_scales o_a o_a_scales low_heads G Ro columns");
            self.put(down.with("columns", hd / groups))?;
            self.tap("low_heads", "low_heads", groups * ro)?;
        } else {
            self.put(grouped("o_down", "heads", "o_a", "low_heads", "Ro", hd / groups))?;
        }
        self.code(["low_heads", "low_heads", "low_heads"], b, groups * ro, groups * ro)?;
        self.product("o_up", ["low_heads", "low_heads", "o_b", "out"], "C", groups * ro)?;
        self.tap("out", "attention_output", "C")?;
        self.put(call("attn_post", "mhc_post.simple").with("y", "out"))
    }

    /// Adds a launch that converts D columns of each row of `from`, from column `first` on, to bfloat16.
    fn row(&mut self, name: &str, from: &str, stride: impl Display, first: i64) -> Result<(), String> {
        let row = kernel(name, "decode_step_row").on([self.n("B")], 128);
        let names = format!("from = {from}, stride = {stride}, first = {first}");
        self.put(row.args("from row D stride first").names(&names))
    }

    /// Adds the launches of the KV compressor `of`: two matrix products (values and logits), and the pooling of windows of tokens
    /// to compressed entries. If `unread`, the f32 entries go to a scratch buffer that no launch reads.
    fn compress(&mut self, of: &str, columns: impl Display, names: &str, unread: bool) -> Result<(), String> {
        let [kv, gate] = [format!("{of}_kv"), format!("{of}_gate")];
        let [values, logits] = [format!("{of}_values"), format!("{of}_logits")];
        self.put(linear(&values, "normed", &kv, "values", &columns, "C"))?;
        self.put(linear(&logits, "normed", &gate, "logits_of_slots", columns, "C"))?;
        let entries = match unread {
            true => "unread".into(),
            false => format!("{of}_entries"),
        };
        let own = format!("ape = {of}_ape, weight = {of}_norm, ring_kv = {of}_ring_kv, ring_gate = {of}_ring_gate");
        let names = format!("kv = values, gate = logits_of_slots, entries = {entries}, {own}, {names}");
        self.put(call(&format!("{of}_compress"), "compressor.simple").names(&names))
    }

    /// Adds the launches that write a compressed entry as a KV record, if keys are records.
    fn write_entry(&mut self, of: &str) -> Result<(), String> {
        if !self.has(Keys::Records) {
            return Ok(());
        }
        let d = self.n("D");
        self.row("entry_row", "stages", 3 * d, 2 * d)?;
        self.put(write(
            &format!("{of}_write"),
            &format!("{of}_at"),
            &format!("{of}_pages"),
            "D",
        ))
    }

    /// Adds the launch of attention over the KV records of the sliding window and of the compressed entries.
    fn attend(&mut self, name: &str, of: &str, names: &str) -> Result<(), String> {
        self.put(call(name, "record_attention.simple").names(&format!(
            "q = query, window_slots = chosen, pages = {of}_pages, slots = chosen, out = heads, window_own = window_pages_of_row, \
             own = {of}_pages_of_row, window_listed = 0, scale = attention_scale, {names}"
        )))
    }

    fn sparse(&mut self) -> Result<(), String> {
        let [d, hi, di, b] = self.g.sizes(["D", "HI", "DI", "B"]);
        let (records, indexed) = (self.has(Keys::Records), self.has(Keys::Indexed));
        self.compress("csa", 2 * d, "m = ms, N = Ns, overlap = 1", records)?;
        self.tap_entry()?;
        self.write_entry("csa")?;
        self.product(
            "index_up",
            ["low_normed", "low", "index_q", "index_query"],
            hi * di,
            "Rq",
        )?;
        self.put(rope("index_rope", "forward", "index_query").names("H = HI, D = DI"))?;
        self.tap_sparse("index_query", "index_query", hi * di)?;
        self.compress("index", 2 * di, "m = ms, N = Ns, overlap = 1, D = DI", indexed)?;
        self.tap_index_key("stages")?;
        if indexed {
            let row = kernel("index_row", "decode_step_index_row_{index}").on([b], 32);
            self.put(row.args("stages row"))?;
            self.put(write("index_write", "csa_at", "index_pages", "DI").with("record", "{index}"))?;
        }
        self.put(linear(
            "index_weights",
            "normed",
            "index_heads",
            "head_weights",
            "HI",
            "C",
        ))?;
        if indexed {
            let query = kernel("index_query", "decode_step_index_query_{index}").on([ceil(hi, 4), b], 128);
            self.put(query.args("index_query coded_query head_weights cos_t sin_t HI 0"))?;
            let names =
                "record = {index}, q = coded_query, pages = index_pages, table = index_table, count = sparse_count";
            let score = call("index_score", "index_records.simple").names(names);
            self.put(score.names("H = HI, N = Ns, scale = index_scale"))?;
        } else {
            let names = "q = index_query, keys = index_entries, count = sparse_count, H = HI, D = DI, N = Ns, scale = index_scale";
            self.put(call("index_score", "index_scores.simple").names(names))?;
        }
        self.put(call("select", "top_k.simple").names("count = sparse_count, indices = chosen, N = Ns, K = topk"))?;
        self.tap_sparse("chosen", "topk", "topk")?;
        if records {
            return self.attend("attend_sparse", "csa", "count = chosen_count, K = topk, listed = 1");
        }
        let attend = call("attend_sparse", "sparse_attention.simple").names("reads = indices, entries = csa_entries");
        let attend = attend.names("q = query, indices = chosen, count = sparse_count, out = heads, N = Ns, K = topk");
        self.put(attend.with("scale", "attention_scale"))
    }

    fn heavy(&mut self) -> Result<(), String> {
        let records = self.has(Keys::Records);
        self.compress("hca", "D", "m = mh, N = Nh, overlap = 0", records)?;
        self.tap_entry()?;
        self.write_entry("hca")?;
        if records {
            return self.attend("attend_heavy", "hca", "count = heavy_count, K = Nh, listed = 0");
        }
        let attend = call("attend_heavy", "sparse_attention.simple").names("reads = all, entries = hca_entries");
        let attend = attend.names("q = query, indices = chosen, count = heavy_count, out = heads, N = Nh, K = 1");
        self.put(attend.with("scale", "attention_scale"))
    }

    fn experts(&mut self) -> Result<(), String> {
        let [hashes, layers] = self.g.sizes(["hashes", "layers"]);
        let layer = self.layer;
        self.mix("moe_mix", "moe")?;
        self.tap("normed", "moe_input", "C")?;
        self.put(linear("router_logits", "normed", "gate", "expert_logits", "E", "C"))?;
        let select = if layer < hashes { "table" } else { "bias" };
        let names = format!(
            "select = {select}, logits = expert_logits, experts = expert, weights = expert_weight, scale = router_scale"
        );
        self.put(call(&format!("route_{select}"), "router.simple").names(&names))?;
        if layer >= hashes {
            self.tap_at((layer - hashes, layers - hashes), "expert", "router", "K")?;
        }
        let names = "x = normed, experts = expert, weights = expert_weight, gate_up_scale = gate_up_scales, down_scale = down_scales";
        let mixture = call("mixture", "experts.simple").names(names).names("y = out, D = C");
        let shared = "shared_gate_up_scale = shared_gate_up_scales, shared_down_scale = shared_down_scales";
        self.put(mixture.names(shared))?;
        self.tap("out", "moe_output", "C")?;
        self.put(call("moe_post", "mhc_post.simple").with("y", "out"))?;
        self.tap("x", "output", "wide")
    }
}
