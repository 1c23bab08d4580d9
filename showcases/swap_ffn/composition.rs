//! Kernel launches of Swap-FFN. A token of each of B sequences is expanded to C cores, and each core has a vector x, so x has B ·
//! C rows. In each event, cores may exchange their rows with memory banks, then J steps of an FFN update the rows.

use ulplab_backend::cuda::Compositions;
use ulplab_backend::cuda::graph::{Graph, Put, ceil, kernel, product};
use ulplab_backend::cuda::header::{Factor, Matmul, Number, Sum};

/// Launch sequences (compositions) of all variants of `swap_ffn`.
pub const COMPOSITIONS: Compositions = Compositions {
    op: "swap_ffn",
    calls: "",
    variants: &[
        ("simple", simple),
        ("unfused", unfused),
        ("cublaslt", |g| cublaslt(g, Sum::F32)),
        ("cublaslt_bf16", |g| cublaslt(g, Sum::Bf16)),
        ("fused", |g| fused(g, false)),
        ("programmatic", |g| fused(g, true)),
        ("persistent", |g| persistent(g, 4)),
        ("persistent_many", |g| persistent(g, 1)),
        ("cublaslt_fp8", |g| cublaslt(g, Sum::F32)),
        ("fp8", |g| fused(g, true)),
        ("fp8_persistent", |g| persistent(g, 4)),
        ("fp8_persistent_many", |g| persistent(g, 1)),
    ],
};

type Done = Result<(), String>;

/// Returns a launch with 256 threads per thread block.
fn launch(name: &str, entry: &str, blocks: i64, args: &str) -> Put {
    kernel(name, &format!("swap_ffn_{entry}")).on([blocks], 256).args(args)
}

fn rows(g: &Graph) -> i64 {
    g.n("B") * g.n("C")
}

/// If the case outputs delta (the result of the token), adds the launches that compute it from x: pooling of the cores,
/// `products` of the pooled rows (one launch, or three), and decoding.
fn collapse(g: &mut Graph, products: impl Fn(&mut Graph) -> Done) -> Done {
    let [b, d, end] = g.sizes(["B", "D", "end"]);
    if end == 0 {
        return Ok(());
    }
    g.scratch("pooled", b * 8 * d * 4)?;
    g.scratch("reduced", b * 224 * 4)?;
    g.put(launch("pool", "pool", b * d / 8, "x film_alpha pooled C D"))?;
    products(g)?;
    g.put(launch("decode", "decode", b * d / 8, "reduced decoder delta B D"))
}

fn reduce(g: &mut Graph) -> Done {
    g.put(launch("reduce", "reduce", g.n("B") * 224, "pooled basis reduced D"))
}

fn begin(g: &mut Graph, kind: &str) -> Done {
    let args = "x_in film_scale film_shift x router ffn_g sums n n_scale C D begin eps";
    g.put(launch("start", &format!("start_{kind}_{{W}}"), rows(g), args))
}

fn swap(g: &Graph, kind: &str, event: i64) -> Put {
    let args = "x ram map decisions event sums router_bias ffn_g n n_scale D eps";
    let swap = launch("swap", &format!("swap_{kind}_{{W}}_{{L}}"), rows(g), args);
    let of_row = 1152 + (12 + g.n("size")) * g.n("D");
    swap.with("event", event).bytes(rows(g) * of_row)
}

fn activate(g: &mut Graph, entry: &str) -> Done {
    g.put(launch("activate", entry, rows(g), "gate_up h h_scale F"))
}

fn settle(g: &mut Graph, kind: &str) -> Done {
    let args = "x router ffn_g sums n n_scale D eps";
    g.put(launch("settle", &format!("settle_{kind}_{{W}}"), rows(g), args))
}

/// Allocates scratch buffers of the variants without their own tensor-core kernels.
fn scratch(g: &mut Graph) -> Done {
    let (rows, [d, f, size]) = (rows(g), g.sizes(["D", "F", "size"]));
    g.scratch("sums", rows * 1152)?;
    g.scratch("n", rows * d * size)?;
    g.scratch("h", rows * f * size)?;
    g.scratch("n_scale h_scale", rows * 4)
}

/// Adds the launches of the variant whose products do not use tensor cores.
fn simple(g: &mut Graph) -> Done {
    let (rows, [d, f, events, steps]) = (rows(g), g.sizes(["D", "F", "E", "J"]));
    scratch(g)?;
    g.scratch("gate_up", rows * f * 8)?;
    begin(g, "simple")?;
    let tiles = |columns: i64| [ceil(columns, 64), ceil(rows, 64)];
    let flops = 2 * rows * d * f;
    for event in 0..events {
        g.put(swap(g, "simple", event))?;
        for _ in 0..steps {
            let [across, down] = tiles(f);
            let gate_up = kernel("gate_up", "swap_ffn_gate_up_simple_{W}").on([across, down, 2], 256);
            let gate_up = gate_up.args("n w1 w3 n_scale w1_scale w3_scale gate_up B C D F");
            g.put(gate_up.flops(2 * flops))?;
            activate(g, "activate_{W}")?;
            let down = kernel("down", "swap_ffn_down_simple_{W}").on(tiles(d), 256);
            g.put(down.args("h w2 h_scale w2_scale x B C D F RES").flops(flops))?;
            settle(g, "simple")?;
        }
    }
    collapse(g, reduce)
}

/// Adds a cuBLASLt launch for the product D = A·Bᵀ of all rows.
fn multiply(g: &mut Graph, name: &str, [a, b, d]: [&str; 3], [n, k]: [i64; 2], into: Sum) -> Done {
    let e4m3 = g.n("size") == 1;
    let [m, n, k] = [rows(g), n, k].map(Number::Plain);
    let scales = e4m3.then(|| [format!("{a}_scale"), format!("{b}_scale")]);
    let of = if e4m3 { Factor::E4m3 } else { Factor::Bf16 };
    let [a, b, d] = [a, b, d].map(String::from);
    #[rustfmt::skip]
    let matmul = Matmul { a, b, d, m, n, k, of, into, scales };
    g.put(product(name, matmul))
}

/// Adds the launches of the down product h·W2ᵀ, which cuBLASLt writes to x. If the FFN has a residual, the previous x is kept and
/// added afterwards.
fn down(g: &mut Graph, name: &str) -> Done {
    let [d, f, residual] = g.sizes(["D", "F", "RES"]);
    let tiles = rows(g) * ceil(d, 256);
    if residual != 0 {
        g.put(launch("keep", "unfused_keep", tiles, "x kept B C D"))?;
    }
    multiply(g, name, ["h", "w2", "x"], [d, f], Sum::F32)?;
    if residual != 0 {
        g.put(launch("add", "unfused_add", tiles, "kept x B C D"))?;
    }
    Ok(())
}

/// Adds the launches of the variant that has a separate launch for each tensor operation.
fn unfused(g: &mut Graph) -> Done {
    let (rows, [b, d, f, events, steps]) = (rows(g), g.sizes(["B", "D", "F", "E", "J"]));
    for (bytes, names) in [
        (1, "gate bank physical"),
        (4, "norm logit lanes next_lanes"),
        (16, "banks"),
        (256, "z"),
        (d * 2, "gathered n"),
        (d * 4, "normed kept"),
        (d * 8, "next_ram"),
        (f * 2, "h"),
        (f * 4, "gates ups"),
    ] {
        g.scratch(names, rows * bytes)?;
    }
    g.scratch("products", b * 8 * 224 * 4)?;
    let tiles = rows * ceil(d, 256);
    let put = |g: &mut Graph, name: &str, blocks: i64, args: &str| {
        g.put(launch(name, &format!("unfused_{name}"), blocks, args))
    };
    put(g, "film", tiles, "x_in film_scale film_shift x B C D begin")?;
    for event in 0..events {
        put(g, "norm", rows, "x norm D eps")?;
        put(g, "scale", tiles, "x norm router_g normed B C D")?;
        let project = kernel("project", "swap_ffn_unfused_project").on([1, ceil(rows, 64)], 256);
        g.put(project.args("normed router_w z B C D"))?;
        put(g, "logit", ceil(rows, 8), "z router_swap router_bias logit B C")?;
        put(g, "gate", ceil(rows, 256), "logit gate B C")?;
        put(g, "banks", ceil(rows, 256), "z bank_w banks B C")?;
        put(g, "bank", ceil(rows, 256), "banks router_bias bank B C")?;
        put(g, "lanes", ceil(rows, 256), "map lanes B C")?;
        put(g, "physical", ceil(rows, 256), "lanes bank physical B C")?;
        put(g, "gather", tiles, "ram physical gathered B C D")?;
        for write in ["write_0", "write_1", "write_2", "write_3"] {
            put(g, write, tiles, "gate physical ram x next_ram B C D")?;
        }
        put(g, "take", tiles, "gate gathered x B C D")?;
        put(g, "stack", 4 * tiles, "next_ram ram B C D")?;
        for lane in ["first_lane", "middle_lane", "last_lane"] {
            let entry = format!("unfused_{lane}_{{L}}");
            let args = "gate bank physical lanes next_lanes B C";
            g.put(launch(lane, &entry, ceil(rows, 256), args))?;
        }
        let args = "gate bank next_lanes map decisions event B C";
        let pack = launch("pack", "unfused_pack", ceil(rows, 256), args);
        g.put(pack.with("event", event))?;
        for _ in 0..steps {
            put(g, "operand", rows, "x ffn_g n D eps")?;
            multiply(g, "gate_product", ["n", "w1", "gates"], [f, d], Sum::F32)?;
            multiply(g, "up_product", ["n", "w3", "ups"], [f, d], Sum::F32)?;
            put(g, "activate", rows * ceil(f, 256), "gates ups h B C F")?;
            down(g, "down_product")?;
        }
    }
    collapse(g, |g| {
        put(g, "reduce", b * 8 * 224, "pooled basis products D")?;
        put(g, "sum", ceil(b * 224, 256), "products reduced B")?;
        put(g, "silu", ceil(b * 224, 256), "reduced B")
    })
}

/// Adds the launches of a variant with products by cuBLASLt, in bf16 or in E4M3. The products with the gate and up weights are
/// stored in the type `into`.
fn cublaslt(g: &mut Graph, into: Sum) -> Done {
    let (rows, [d, f, size]) = (rows(g), g.sizes(["D", "F", "size"]));
    let (entry, bytes) = match into {
        Sum::F32 => ("activate_{W}", 8),
        Sum::Bf16 => ("activate_bf16_in", 4),
    };
    scratch(g)?;
    g.scratch("gate_up", rows * f * bytes)?;
    g.scratch("w13", 2 * f * d * size)?;
    g.scratch("w13_scale", 2 * f * 4)?;
    g.scratch("kept", rows * d * 4)?;
    let args = "w1 w3 w1_scale w3_scale w13 w13_scale D F";
    g.prepare(launch("join", "join_{W}", 2 * f, args))?;
    begin(g, "rows")?;
    for event in 0..g.n("E") {
        g.put(swap(g, "rows", event))?;
        for _ in 0..g.n("J") {
            multiply(g, "gate_up", ["n", "w13", "gate_up"], [2 * f, d], into)?;
            activate(g, entry)?;
            down(g, "down")?;
            settle(g, "rows")?;
        }
    }
    collapse(g, reduce)
}

/// Adds launches that pack the weights in the order of tiles. Allocates flags and partial sums for thread blocks that wait for
/// each other: `planes` thread blocks share the sum of a down product (split-K).
fn pack(g: &mut Graph, planes: i64) -> Done {
    let (rows, [d, f, size]) = (rows(g), g.sizes(["D", "F", "size"]));
    g.scratch("sums", rows * 1152)?;
    g.scratch("n", rows * d * 2)?;
    g.scratch("h", rows * f * 2)?;
    g.scratch("packed_13", 8_388_608 * size)?;
    g.scratch("packed_2", 4_194_304 * size)?;
    g.scratch("joint", rows)?;
    g.scratch("parts", rows * 4096)?;
    g.prepare(launch("pack_gate_up", "pack_gate_up_{W}", 2 * f, "w1 w3 packed_13 D"))?;
    let entry = format!("pack_down_{planes}_{{W}}");
    g.prepare(launch("pack_down", &entry, d, "w2 packed_2 F"))?;
    g.prepare(launch("absent", "absent", rows, "parts joint"))
}

/// Adds the launches of a variant with two launches for each FFN step. If `programmatic`, each launch may begin before the
/// previous launch has ended.
fn fused(g: &mut Graph, programmatic: bool) -> Done {
    let (rows, [d, f, size]) = (rows(g), g.sizes(["D", "F", "size"]));
    g.programmatic(programmatic);
    pack(g, 4)?;
    let args = "x_in film_scale film_shift x router ffn_g sums n joint B C D begin eps";
    g.put(launch("start", "start_tiles_{W}", rows, args))?;
    let tiles = |name: &str, entry: &str| kernel(name, entry).on([rows / 128 * 32], 384).shared(230_696);
    let flops = 2 * rows * d * f;
    for event in 0..g.n("E") {
        g.put(swap(g, "tiles", event).args("x ram map decisions event sums router_bias ffn_g n B C D eps"))?;
        for step in 0..g.n("J") {
            let gate_up = tiles("gate_up", "swap_ffn_gate_up_{W}");
            let gate_up = gate_up.args("n packed_13 sums w1_scale w3_scale h joint B C eps");
            let bytes = (2 * f * d + rows * (d + f)) * size;
            g.put(gate_up.bytes(bytes).flops(2 * flops))?;
            let down = tiles("down", "swap_ffn_down_{W}").cluster(2);
            let down = down.args("h packed_2 w2_scale router ffn_g x sums n joint parts B C J event step RES");
            let bytes = f * d * size + rows * (f * size + d * (4 + size));
            let down = down.with("event", event).with("step", step);
            g.put(down.bytes(bytes).flops(flops))?;
        }
    }
    collapse(g, reduce)
}

/// Adds the launches of a variant that runs all events of a token in one persistent launch.
fn persistent(g: &mut Graph, planes: i64) -> Done {
    let (rows, [b, c, d, f, size]) = (rows(g), g.sizes(["B", "C", "D", "F", "size"]));
    let [events, steps, begins] = g.sizes(["E", "J", "begin"]);
    g.programmatic(true);
    pack(g, planes)?;
    let entry = format!("swap_ffn_events_{planes}_{{W}}");
    let all = kernel("events", &entry).on([128], 384).cluster(2).shared(230_952);
    let all = all.args(
        "x_in film_scale film_shift x ram map decisions sums router_bias router ffn_g n packed_13 w1_scale w3_scale h packed_2 \
         w2_scale joint parts B C D begin E J rule RES eps",
    );
    let step = 3 * f * d * size + rows * (d * (4 + 2 * size) + f * 2 * size);
    let event = rows * (1152 + (12 + size) * d) + steps * step;
    let bytes = begins * (b * 2 + c * 8 + rows * 6) * d + events * event;
    g.put(all.bytes(bytes).flops(events * steps * 6 * rows * d * f))?;
    collapse(g, reduce)
}
