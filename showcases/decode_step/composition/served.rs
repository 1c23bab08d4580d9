//! Variants (implementations) of the decode step with the fastest kernels, some of which fuse several operations. The projections
//! of attention take E4M3 codes, all other matrix products take bfloat16.

use std::fmt::Display;

use super::{OF_BANKS, Step};
use ulplab_backend::cuda::graph::{Graph, Put, call, ceil, kernel};

/// Adds the launches of a whole step. For batches of many rows (`many`), a thread block of attention computes more heads, and
/// the selection of experts is a separate launch.
pub(super) fn served(g: &mut Graph, many: bool) -> Result<(), String> {
    let mut served = Step::new(g, Served { many })?;
    served.scratch()?;
    served.begin()?;
    served.g.programmatic(true);
    served.put(served.places())?;
    served.put(served.table())?;
    for layer in 0..served.n("layers") {
        served.enter(layer);
        served.attention()?;
        served.experts()?;
    }
    served.head()
}

struct Served {
    many: bool,
}

/// Returns the number of output rows that a thread block of a matrix product computes, for `b` rows in the batch.
fn rows_of_block(b: i64) -> i64 {
    match b {
        ..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        _ => 64,
    }
}

/// Sets grid, cluster and shared memory of an E4M3 matrix product with `tiles` tiles of 64 output columns and sums of `k` terms.
/// The first grid dimension is the number of row blocks times the size of a cluster; `of` holds the other grid dimensions. If
/// `few` is true, the thread blocks of a cluster share a tile. `few` must equal `few_tokens` in `fp8_gemm/split.cuh`.
fn codes<const N: usize>(launch: Put, b: i64, k: i64, tiles: i64, of: [i64; N]) -> Put {
    let rows = rows_of_block(b);
    let few = b <= 2 && tiles <= 132 && k <= 8192;
    let shared = match few {
        true => 131_088 + (1024 + 260 * b) * ceil(k, 128),
        false => {
            let stages = 8 - 2 * i64::from(b > 32) - 2 * i64::from(b <= 8 && tiles > 396);
            stages * 128 * (64 + rows) + 4 * ceil(k, 128) * rows
        }
    };
    let cluster = match tiles {
        ..=33 if few => 4,
        ..=66 if few => 2,
        _ => 1,
    };
    let mut grid = vec![ceil(b, rows) * cluster];
    grid.extend(of);
    let launch = launch.on(&grid, if few { 512 } else { 128 }).cluster(cluster);
    launch.shared(shared)
}

/// Sets grid, cluster and shared memory of a launch that computes several bfloat16 matrix products with `tiles` tiles of 64
/// columns in total, in the same way as `linear.tensor`.
fn halves(launch: Put, b: i64, tiles: i64) -> Put {
    let rows = rows_of_block(b);
    let cluster = match tiles {
        ..=44 => 4,
        45..=66 => 2,
        _ => 1,
    };
    let above = |rows: i64| i64::from(b > rows);
    let more = tiles * cluster <= if b <= 8 { 264 } else { 132 };
    let more = if more {
        5 + above(8) + 2 * above(16) - above(32)
    } else {
        0
    };
    let stages = 6 - above(8) - above(16) - above(32) + more;
    let sums = if b <= 16 {
        16 + 2048 * (1 + above(8)) * (cluster - 1)
    } else {
        0
    };
    let launch = launch.on([ceil(b, rows) * cluster, tiles], 128).cluster(cluster);
    launch.shared(stages * 128 * (64 + rows) + sums)
}

impl Step<'_, '_, Served> {
    fn scratch(&mut self) -> Result<(), String> {
        self.records()?;
        self.indexed()?;
        self.eight()?;
        let [i, wide] = self.g.sizes(["I", "wide"]);
        let [c, hd, di, chosen, experts, b] = self.g.sizes(["C", "HD", "DI", "K", "E", "B"]);
        for (name, of_row) in [
            ("half_input", c * 2),
            ("half_query", hd * 2),
            ("index_values", 2 * di * 4),
            ("index_stages", 3 * di * 4),
            ("index_logits", 2 * di * 4),
            ("hidden", (chosen + 1) * i * 2),
            ("moe_x", wide * 4),
            ("moe_post", 4 * 4),
            ("moe_comb", 16 * 4),
            ("arrived", 4),
            ("expert_scores", experts * 8),
            ("mix_sums", 24 * self.parts() * 4),
            ("attended", hd * 2),
        ] {
            self.g.scratch(name, b * of_row)?;
        }
        Ok(())
    }

    /// Returns the number of thread blocks among which [`Self::sums`] divides the channels of a residual stream.
    fn parts(&self) -> i64 {
        let c = self.n("C");
        ceil(c, 32 * ceil(c, 4096))
    }

    /// Returns a launch of the kernel `entry` with one thread block for each 512 columns of each row.
    fn of_columns(&self, name: &str, entry: &str, columns: i64) -> Put {
        kernel(name, entry).on([ceil(columns, 512), self.n("B")], 128)
    }

    /// Adds the launch that computes the sums for mixing the residual streams `x` with the output of attention or of the experts.
    fn sums(&mut self, of: &str, x: &str, post: &str, comb: &str) -> Result<(), String> {
        let grid = [self.parts(), ceil(self.n("B"), 4).min(4)];
        let sums = kernel(&format!("{of}_sums"), "decode_step_sums").on(grid, 192);
        let names = format!("x = {x}, post = {post}, comb = {comb}, fn = {of}_fn");
        self.put(sums.args("x out post comb fn mix_sums arrived B C").names(&names))
    }

    /// Returns the number of threads of a thread block that mixes the residual streams of a whole row.
    fn mixers(&self) -> i64 {
        32 * ceil(self.n("C"), 384) + 64
    }

    /// Adds launches that add the output of the previous layer's experts to the residual streams, mix these, and store the input
    /// of attention as 8-bit codes and in bfloat16.
    fn mix(&mut self) -> Result<(), String> {
        if self.layer == 0 {
            let names = "fn = attn_fn, base = attn_base, scale = attn_scale, weight = attn_norm, y = normed";
            self.put(call("attn_mix", "mhc_pre.parts").names(names))?;
            let code = self.of_columns("input_code", "decode_step_input_{activations}", self.n("C"));
            return self.put(code.args("normed input_codes input_scales half_input C"));
        }
        self.sums("attn", "moe_x", "moe_post", "moe_comb")?;
        let code = match self.of.many {
            true => kernel("attn_code", "decode_step_mix_parts_{activations}").on([self.n("B")], self.mixers()),
            false => kernel("attn_code", "decode_step_mix_{activations}").on([2, self.n("B")], 512),
        };
        let code = code.with("parts", self.parts()).taps("normed").args(
            "moe_x x out moe_post moe_comb mix_sums attn_base attn_scale attn_norm normed half_input input_codes input_scales post comb \
             parts C eps",
        );
        self.put(code)?;
        self.tap_at((self.layer - 1, "layers"), "x", "output", "wide")
    }

    /// Adds the launch of an E4M3 matrix product y = x·wᵀ with codes and scales, of the operation `fp8_gemm`.
    fn product(&mut self, name: &str, [x, w, y]: [&str; 3], n: impl Display, k: impl Display) -> Result<(), String> {
        let names =
            format!("x = {x}_codes, x_scale = {x}_scales, w = {w}, w_scale = {w}_scales, y = {y}, N = {n}, K = {k}");
        self.put(call(name, "fp8_gemm.split").names(&names))
    }

    fn attention(&mut self) -> Result<(), String> {
        let [c, b, d, rq, h, hd, groups, ro] = self.g.sizes(["C", "B", "D", "Rq", "H", "HD", "G", "Ro"]);
        self.mix()?;
        self.tap("normed", "attention_input", "C")?;
        self.tap_codes("input", "attention_input", c, ceil(c, 128))?;
        if !self.is_sparse() {
            let products = halves(kernel("hca_products", "decode_step_products_2"), b, 2 * ceil(d, 64));
            self.put(products.args("half_input hca_kv values D hca_gate logits_of_slots D B C"))?;
        }
        let tiles = ceil(rq, 64) + ceil(d, 64);
        let down = kernel("down", "decode_step_products_codes");
        let down = down.args("input_codes input_scales q_a q_a_scales low Rq kv kv_scales raw_kv D B C");
        self.put(codes(down, b, c, tiles, [tiles]))?;
        let code = kernel("low_code", "decode_step_low_{activations}").on([b], 32 * ceil(rq, 128));
        self.put(
            code.args("low q_norm low_normed low_codes low_scales Rq eps")
                .taps("low_normed"),
        )?;
        self.tap("low_normed", "low_query", "Rq")?;
        self.tap_codes("low", "low_query", rq, ceil(rq, 128))?;
        self.product("q_up", ["low", "q_b", "raw_query"], "HD", "Rq")?;
        let norm = kernel("head_norm", "decode_step_head_norm_{record}").on([h + 1, b], 128);
        let args = "raw_query raw_kv kv_norm cos_t sin_t query half_query kv_row window_at window_pages H R eps";
        self.put(norm.args(args).taps("query kv_row"))?;
        self.tap("query", "query", "HD")?;
        self.tap("kv_row", "kv_window", "D")?;
        match self.is_sparse() {
            true => self.sparse()?,
            false => self.heavy()?,
        }
        if self.of.many {
            let grid = [ceil(hd / groups, 512), groups, b];
            let code = kernel("heads_code", "decode_step_heads_{activations}").on(grid, 128);
            let code = code.args("attended cos_t sin_t heads heads_codes heads_scales columns D R");
            self.put(code.taps("heads").with("columns", hd / groups))?;
        }
        self.tap("heads", "heads", "HD")?;
        self.tap_groups("heads_codes", hd / groups / 4)?;
        self.tap_groups("heads_scales", ceil(hd / groups, 128))?;
        let down = kernel("o_down", "decode_step_groups")
            .args("heads_codes heads_scales o_a o_a_scales low_heads B Ro columns");
        let down = codes(down, b, hd / groups, groups * ceil(ro, 64), [ceil(ro, 64), groups]);
        self.put(down.with("columns", hd / groups))?;
        self.tap_groups("low_heads", "Ro")?;
        let code = self.of_columns("low_heads_code", "decode_step_low_heads_{activations}", groups * ro);
        self.put(code.args("low_heads low_heads_codes low_heads_scales G Ro"))?;
        self.tap_codes("low_heads", "low_heads", groups * ro, ceil(groups * ro, 128))?;
        self.product("o_up", ["low_heads", "o_b", "out"], "C", groups * ro)?;
        self.tap("out", "attention_output", "C")
    }

    /// Adds a launch that copies the values of each group of heads to an output buffer, which the test compares with the
    /// reference.
    fn tap_groups(&mut self, from: &str, columns: impl Display) -> Result<(), String> {
        let grid = [self.n("B"), self.n("G")];
        let tap = kernel(&format!("tap_{from}"), "decode_step_tap_groups")
            .on(grid, 128)
            .tap();
        let layer = self.layer;
        let names = format!("from = {from}, to = at_{from}, layer = {layer}, columns = {columns}");
        self.put(tap.args("from to clock layer layers S columns").names(&names))
    }

    /// Adds the launch of attention over the KV records of the sliding window and of up to `entries` compressed entries.
    fn attend(&mut self, name: &str, of: &str, count: &str, entries: &str, listed: i64) -> Result<(), String> {
        if self.of.many {
            let names = format!(
                "q = half_query, window_slots = chosen, pages = {of}_pages, slots = chosen, count = {count}, out = attended, K = {entries}, \
                 window_own = window_pages_of_row, own = {of}_pages_of_row, window_listed = 0, scale = attention_scale, size = 2, \
                 dtype = bf16"
            );
            let attend = call(name, "record_attention.cluster")
                .names(&names)
                .with("listed", listed);
            return self.put(attend);
        }
        let [b, h, window, keys] = self.g.sizes(["B", "H", "Wn", entries]);
        let cluster = ceil(window + keys, 80).clamp(1, 8);
        let attend = kernel(name, "decode_step_attend_{record}").on([b * cluster, ceil(h, 16)], 512);
        let attend = attend.args(
            "half_query window_pages chosen window_count pages chosen count sinks cos_t sin_t heads heads_codes heads_scales B columns R \
             H Wn entries window_pages_of_row own 0 listed attention_scale",
        );
        let names = format!(
            "pages = {of}_pages, count = {count}, entries = {entries}, own = {of}_pages_of_row, listed = {listed}"
        );
        let attend = attend.cluster(cluster).shared(215_040).names(&names);
        let columns = self.n("HD") / self.n("G");
        self.put(attend.taps("heads").with("columns", columns))
    }

    fn sparse(&mut self) -> Result<(), String> {
        let [d, di, hi, b] = self.g.sizes(["D", "DI", "HI", "B"]);
        let tiles = 2 * ceil(2 * d, 64) + 2 * ceil(2 * di, 64) + ceil(hi, 64);
        let products = halves(kernel("csa_products", "decode_step_products_5"), b, tiles);
        let products = products.args(
            "half_input csa_kv values columns csa_gate logits_of_slots columns index_kv index_values index_columns index_gate \
             index_logits index_columns index_heads head_weights HI B C",
        );
        self.put(products.with("columns", 2 * d).with("index_columns", 2 * di))?;
        self.product("index_up", ["low", "index_q", "index_query"], hi * di, "Rq")?;
        let entry = kernel("sparse_entry", "decode_step_sparse_{record}_{index}").on([2 + ceil(hi, 4), b], 128);
        let entry = entry.args(
            "values logits_of_slots csa_ape csa_norm csa_ring_kv csa_ring_gate stages csa_pages index_values index_logits index_ape \
             index_norm index_ring_kv index_ring_gate index_stages index_pages csa_at cos sin position B R eps index_query coded_query \
             head_weights cos_t sin_t HI",
        );
        self.put(entry.taps("stages index_stages"))?;
        self.tap_entry()?;
        self.tap_index_key("index_stages")?;
        self.tap_sparse("index_query", "index_query", hi * di)?;
        let names = "record = {index}, q = coded_query, pages = index_pages, table = index_table, count = sparse_count, H = HI, N = Ns";
        self.put(
            call("index_score", "index_records.tensor")
                .names(names)
                .names("scale = index_scale"),
        )?;
        let select = if self.of.many { "top_k.stream" } else { "top_k.block" };
        let select = call("select", select).names("count = sparse_count, indices = chosen, N = Ns, K = topk");
        self.put(select)?;
        self.tap_sparse("chosen", "topk", "topk")?;
        self.attend("attend_sparse", "csa", "chosen_count", "topk", 1)
    }

    fn heavy(&mut self) -> Result<(), String> {
        let entry = kernel("heavy_entry", "decode_step_heavy_{record}")
            .on([8 * self.n("B")], 256)
            .cluster(8);
        let entry = entry.args(
            "values logits_of_slots hca_ape hca_norm hca_ring_kv hca_ring_gate stages hca_pages hca_at cos sin position B R eps",
        );
        self.put(entry.taps("stages"))?;
        self.tap_entry()?;
        self.attend("attend_heavy", "hca", "heavy_count", "Nh", 0)
    }

    /// Adds launches that add attention's output to the residual streams, mix these to the input of the experts, and select the
    /// experts.
    fn route(&mut self) -> Result<(), String> {
        let [hashes, b, c, experts] = self.g.sizes(["hashes", "B", "C", "E"]);
        let select = if self.layer < hashes { "table" } else { "bias" };
        self.sums("moe", "x", "post", "comb")?;
        let parts = self.parts();
        if self.of.many {
            let half = kernel("moe_half", "decode_step_mix_half").on([b], self.mixers());
            let half = half.args(
                "x moe_x out post comb mix_sums moe_base moe_scale moe_norm normed half_input moe_post moe_comb parts C eps",
            );
            self.put(half.with("parts", parts).taps("normed"))?;
            self.half_product("router_logits", "gate", "expert_logits", "E")?;
            let names = format!("select = {select}, logits = expert_logits, experts = expert, weights = expert_weight");
            let route = call(&format!("route_{select}"), "router.registers").names(&names);
            return self.put(route.with("scale", "router_scale"));
        }
        let route = kernel(&format!("moe_route_{select}"), &format!("decode_step_route_{select}"))
            .on([ceil(experts, 8) + 1, b.min(4)], 512)
            .shared(16 * c);
        let route = route.with("parts", parts).taps("normed");
        self.put(route.args(
            "x moe_x out post comb mix_sums moe_base moe_scale moe_norm normed half_input moe_post moe_comb gate bias table token \
             expert_scores arrived expert expert_weight mixture_packed_x mixture_tiles mixture_order B parts C E K eps router_scale",
        ))
    }

    fn experts(&mut self) -> Result<(), String> {
        let [hashes, layers, b, chosen] = self.g.sizes(["hashes", "layers", "B", "K"]);
        let [i, banks] = self.g.sizes(["I", "banks"]);
        let layer = self.layer;
        self.route()?;
        if layer >= hashes {
            self.tap_at((layer - hashes, layers - hashes), "expert", "router", "K")?;
        }
        self.tap("normed", "moe_input", "C")?;
        self.tap("expert", "experts", "K")?;
        self.tap("expert_weight", "expert_weights", "K")?;
        self.g.at(layer % banks, OF_BANKS);
        let names = "format = mxfp4, x = half_input, experts = expert, weights = expert_weight, y = out, D = C";
        let mixture = call("mixture", "moe_fp4.grouped")
            .names(names)
            .part(layer % banks, banks);
        let mixture = mixture.names("gate_up_scale = gate_up_scales, gate_up_tensor = gate_up_level");
        // For a single row, the routing launch has already sorted the row by experts, so skip the first launch of the mixture of
        // experts.
        let sorted = b == 1 && !self.of.many;
        let mixture = mixture
            .names("down_scale = down_scales, down_tensor = down_level")
            .skip(sorted.into());
        self.put(mixture)?;
        self.tap("hidden", "hidden", (chosen + 1) * i / 2)?;
        self.tap("out", "moe_output", "C")
    }

    /// Adds the launch of the bfloat16 matrix product y = x·wᵀ with x = `half_input`.
    fn half_product(&mut self, name: &str, w: &str, y: &str, n: &str) -> Result<(), String> {
        let names = format!("x = half_input, w = {w}, y = {y}, G = 1, N = {n}, K = C, dtype = bf16, size = 2");
        self.put(call(name, "linear.tensor").names(&names))
    }

    fn head(&mut self) -> Result<(), String> {
        let [layers, c, b] = self.g.sizes(["layers", "C", "B"]);
        let post = call("last_post", "mhc_post.simple").names("x = moe_x, y = out, post = moe_post, comb = moe_comb");
        self.put(post)?;
        self.tap_at((layers - 1, "layers"), "moe_x", "output", "wide")?;
        let names = "x = moe_x, fn = head_fn, base = head_base, scale = head_scale, weight = final_norm, y = normed";
        self.put(call("head_mix", "hyper_head.cluster").names(names))?;
        self.tap_at((0, 1), "normed", "head_input", "C")?;
        let half = kernel("head_input", "decode_step_half").on([ceil(c, 1024), b], 256);
        self.put(half.args("normed half_input C"))?;
        self.half_product("head_product", "head", "row_logits", "V")?;
        self.end("sample.split")
    }
}
