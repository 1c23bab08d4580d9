//! Expected values of a stretch (consecutive events) in the computation of a token by Swap-FFN. A token is expanded to cores, and
//! every core has a vector x. In each event, a router decides if the core exchanges x with one of its four memory banks. Then x
//! passes through an FFN that all cores share: x ← W2·(silu(W1·n) ⊙ W3·n) with n = norm(x). A stretch begins with x, or with a
//! token that FiLM (a scale and a shift per core) spreads over the cores. It may end with pooling and decoding of the cores.
//!
//! Errors: the reference runs on numbers that carry the variance of their error ([`crate::varied`]). If a kernel rounds operands
//! before it multiplies them (to the type `operands`), the variance of this rounding is added. A kernel's numbers must be within
//! eight standard deviations of the reference's.
//!
//! The router's decisions (exchange or not, and which bank) have no error bound. If the errors of its logits leave a decision
//! open, either outcome is allowed, and all later values depend on the outcome. If the kernel's `decisions` are given, the
//! reference follows each of them that the errors allow, and otherwise decides itself.

use reference::paths::swap_ffn::{BANKS, Collapse, Config, Ffn, Film, IDENTITY, LaneRule, Model, Router, State};
use reference::{Choice, Numerics, Real, Site, Tensor as Numbers};
use safetensors::Dtype;

use ulplab_operations::expected::sum::Terms;
use ulplab_operations::expected::{Call, Operation, Other, Output, Tensor, faults, half_spacing, takes};

use crate::varied::{Varied, rounded, stored};

/// The operation `swap_ffn` on a user's tensors.
pub const SWAP_FFN: Operation = Operation {
    name: "swap_ffn",
    doc: "a token of Swap-FFN: cores exchange their vectors with banks of memory and share one FFN",
    takes: takes! {
        x Optional: "[B, C, D]: the cores' vectors; or x_in";
        x_in Optional: "[B, D]: tokens, which are spread over the cores: x_in*film_scale + film_shift";
        film_scale Optional: "[C, D], with x_in";
        film_shift Optional: "[C, D], with x_in";
        ram Tensor: "[B, C, 4, D]: the banks";
        map Tensor: "[B, C]: bytes; bits 2i and 2i + 1 are the number of the bank in lane i";
        router Tensor: "[5, D]: of the logits of the gate and the four lanes, folded";
        router_bias Tensor: "[5]";
        ffn_g Tensor: "[D]: of the norm";
        w1 Tensor: "[F, D]";
        w3 Tensor: "[F, D]";
        w2 Tensor: "[D, F]";
        film_alpha Optional: "[C, P]: how cores are pooled, with basis and decoder, which give the output delta";
        basis Optional: "[P, R, D]";
        decoder Optional: "[D, R]";
        decisions Optional: "[E, B, C]: gate*4 + lane of the kernel, which are followed where errors allow it";
        events Number(1.0): "E";
        steps Number(2.0): "FFN steps of an event";
        eps Number(1e-6): "of both norms";
        residual Number(0.0): "whether an FFN step is added to x";
        lane_rule Word(&["transpose", "move", "literal"]):
            "how an exchange with lane s changes a map: lanes 0 and s change places, lanes before s move up, or lane 0 becomes lane s";
        operands Word(&["f32", "bf16", "f16", "e4m3"]):
            "the type that a kernel rounds n and the FFN's hidden numbers to before it multiplies them";
        banks Word(&["bf16", "f16", "f32"]): "the type of ram, which is what is read in a later event";
    },
    faults: faults! {
        not_written_back: "what is swapped out is lost";
        map_not_written: "the map is the one before";
        neighbour_map: "the map is that of the next core";
        lane_as_bank: "the number of the lane is taken for that of the bank";
        gate_at_zero: "a logit of 0 opens the gate";
        gate_inverted: "gates are open where they should be closed";
        always_open: "every core exchanges its vector";
        never_open: "no core exchanges its vector";
        last_bank: "of equal banks the last is taken";
        plane_lost: "half of the hidden numbers is left out";
        interleave_off: "columns of gate and up meet others than their own";
        gate_and_up_exchanged: "silu is taken of W3 n, not of W1 n" => |call| call.exchange(["w1", "w3"]);
        no_silu: "silu is left out";
        no_ffn_g: "the weight of the norm is left out" => |call| call.fill("ffn_g", 1.0);
        one_step_fewer: "the last FFN step of each event is left out"
            => |call| call.set("steps", f64::max(call.number("steps") - 1.0, 0.0));
        other_residual: "an FFN step is added where it should take the place of x, or the other way around"
            => |call| call.toggle("residual");
    },
    compute,
    ..Operation::NONE
};

/// Model and sizes of a call of [`SWAP_FFN`].
struct Stretch {
    model: Model<Varied>,
    /// Sizes B, C, D: batch, cores, width of x.
    sizes: [usize; 3],
    events: usize,
    steps: usize,
}

/// Returns the elements of a tensor as error-free numbers, with the shape `shape`.
fn numbers(tensor: &Tensor, shape: impl Into<Vec<usize>>) -> Numbers<Varied> {
    Numbers::new(shape, tensor.data.iter().map(|x| Varied::exact(*x)).collect::<Vec<_>>())
}

impl Stretch {
    fn new(call: &Call) -> Result<Self, String> {
        let shapes = call.shapes()?;
        let [batch, cores, width, inner] = shapes.sizes(["B", "C", "D", "F"]);
        if inner == 0 || width == 0 || cores == 0 {
            let [w1, ram] = ["w1", "ram"].map(|name| &call.tensor(name).shape);
            return Err(format!(
                "swap_ffn: 'w1' is {w1:?} for ram of {ram:?}, expected no size of 0"
            ));
        }
        let [events, steps] = ["events", "steps"].map(|name| call.count(name, 0..=1_000_000, "up to 1000000"));
        let (events, steps) = (events?, steps?);
        if let Some(stated) = shapes.size("E").filter(|stated| *stated != events) {
            return Err(format!(
                "swap_ffn: 'decisions' is of {stated} events, expected {events}"
            ));
        }
        if call.has("x") == call.has("x_in") {
            return Err("swap_ffn: of 'x' and 'x_in' expected one".into());
        }
        together(call, &["x_in", "film_scale", "film_shift"])?;
        together(call, &["film_alpha", "basis", "decoder"])?;
        call.expect_whole("map", 0.0, 255.0)?;
        call.expect_whole("decisions", 0.0, 7.0)?;
        let [ways, rank] = ["P", "R"].map(|letter| shapes.size(letter).unwrap_or(1));
        if ways == 0 || rank == 0 {
            return Err(format!(
                "swap_ffn: 'basis' is [{ways}, {rank}, {width}], expected no size of 0"
            ));
        }
        let part = |name: &str, shape: &[usize]| match call.optional(name) {
            Some(tensor) => numbers(tensor, shape),
            None => Numbers::full(shape, Varied::ZERO),
        };
        let ffn = Ffn {
            norm: part("ffn_g", &[width]).data,
            w1: part("w1", &[inner, width]),
            w3: part("w3", &[inner, width]),
            w2: part("w2", &[width, inner]),
        };
        let config = Config {
            d_model: width,
            d_ff: inner,
            core_count: cores,
            n_events: events,
            k_ffn: steps,
            collapse_k: ways,
            collapse_r: rank,
            eps: call.number("eps"),
            residual: call.flag("residual"),
            lane_rule: match call.word("lane_rule") {
                "move" => LaneRule::MoveToFront,
                "literal" => LaneRule::Literal,
                _ => LaneRule::Transposition,
            },
            ..Config::STANDARD
        };
        let film = Film {
            scale: part("film_scale", &[cores, width]),
            shift: part("film_shift", &[cores, width]),
            alpha: part("film_alpha", &[cores, ways]),
        };
        let bias = part("router_bias", &[1 + BANKS]).data;
        let router = Router::Folded {
            weight: part("router", &[1 + BANKS, width]),
            bias: std::array::from_fn(|at| bias[at]),
        };
        let collapse = Collapse {
            basis: part("basis", &[ways, rank, width]),
            decoder: part("decoder", &[width, rank]),
        };
        let model = Model::new(config, film, router, ffn, collapse).map_err(|why| format!("swap_ffn: {why}"))?;
        Ok(Self {
            model,
            sizes: [batch, cores, width],
            events,
            steps,
        })
    }

    /// Runs the exchange of one event in the reference. A planted fault changes maps or banks before or after the exchange.
    fn exchange(
        &self,
        call: &Call,
        x: &mut Numbers<Varied>,
        state: &mut State<Varied>,
        event: usize,
        follow: &mut Follow,
    ) -> Result<Vec<u8>, String> {
        let (ram, map) = (state.ram.clone(), state.map.clone());
        match call.fault {
            Some("neighbour_map") if !map.is_empty() => state.map.rotate_left(1),
            Some("lane_as_bank") => state.map.fill(IDENTITY),
            _ => {}
        }
        let decisions = self.model.exchange(x, state, event, follow)?;
        match call.fault {
            Some("not_written_back") => state.ram = ram,
            Some("map_not_written") => state.map = map,
            Some("lane_as_bank") => {
                let rule = self.model.config().lane_rule;
                let update = |(row, map): (usize, u8)| match decisions.gate[row] {
                    true => rule.update(map, decisions.bank[row].into()),
                    false => map,
                };
                state.map = map.into_iter().enumerate().map(update).collect();
            }
            _ => {}
        }
        Ok((0..x.rows()).map(|row| decisions.code(row)).collect())
    }
}

/// Returns an error if the call has some of the arguments `names` but lacks others.
fn together(call: &Call, names: &[&str]) -> Result<(), String> {
    let missing = names.iter().find(|name| !call.has(name));
    let given = names.iter().find(|name| call.has(name));
    match (given, missing) {
        (Some(given), Some(missing)) => Err(format!("swap_ffn: '{missing}' is missing, which belongs to '{given}'")),
        _ => Ok(()),
    }
}

fn compute(call: &Call) -> Result<Vec<Output>, String> {
    let stretch = Stretch::new(call)?;
    let (model, [batch, cores, width]) = (&stretch.model, stretch.sizes);
    let rows = batch * cores;
    let mut state = State {
        ram: numbers(call.tensor("ram"), [batch, cores, BANKS, width]),
        map: call.tensor("map").data.iter().map(|map| *map as u8).collect(),
        tokens: 0,
    };
    let mut follow = Follow::new(call);
    let mut x = match call.optional("x") {
        Some(x) => numbers(x, [rows, width]),
        None => model.spread(&numbers(call.tensor("x_in"), [batch, width]), &state, &mut follow)?,
    };
    let mut codes = Vec::new();
    for event in 0..stretch.events {
        follow.event(call, event, rows);
        codes.extend(stretch.exchange(call, &mut x, &mut state, event, &mut follow)?);
        for _ in 0..stretch.steps {
            model.ffn(&mut x, &state, event, &mut follow)?;
        }
    }
    let output = |name, shape: &[usize], numbers: &[Varied], widening: f64| {
        // If outputs have a type coarser than f32, rounding errors are larger by this factor.
        let units = widening * (call.u / half_spacing(Dtype::F32, 1.0)).max(1.0);
        let finite = |error: f64| if error.is_finite() { error } else { 0.0 };
        let of = |number: &Varied| (number.value(), finite(units * number.error()));
        let (value, error) = numbers.iter().map(of).unzip();
        Output::new(name, shape.to_vec(), value, error)
    };
    let mut decisions = Output::exact(
        "decisions",
        vec![stretch.events, batch, cores],
        codes.iter().map(|code| f64::from(*code)).collect(),
    );
    decisions.others = follow.others();
    let maps = state.map.iter().map(|map| f64::from(*map)).collect();
    let mut outputs = vec![
        output("x", &[batch, cores, width], &x.data, follow.widening),
        output("ram", &[batch, cores, BANKS, width], &state.ram.data, follow.widening),
        Output::exact("map", vec![batch, cores], maps),
        decisions,
    ];
    if call.has("basis") {
        let delta = model.collapse(&x, &state, &mut follow)?;
        outputs.push(output("delta", &[batch, width], &delta.data, follow.widening));
    }
    Ok(outputs)
}

/// Hooks into the reference that apply the kernel's decisions and roundings, or a planted fault.
struct Follow {
    fault: Option<&'static str>,
    operands: Option<Dtype>,
    banks: Dtype,
    /// The kernel's decisions in this event as codes, gate · 4 + bank, one for each row; `None` if they are not given.
    codes: Option<Vec<u8>>,
    /// The FFN's gate before silu is applied.
    gate: Vec<Varied>,
    /// For each decision: true if the errors of the logits allow the gate to be open or closed; and for each lane, true if the
    /// errors allow this lane to be selected.
    open: Vec<(bool, Vec<bool>)>,
    /// Factor that widens bounds because of errors in sums of squares ([`Terms::widening`]).
    widening: f64,
    /// Decisions that the reference has taken so far: gates (0 or 1), and lanes.
    decided: [Vec<i32>; 2],
}

impl Follow {
    fn new(call: &Call) -> Self {
        Self {
            fault: call.fault,
            operands: call.dtype("operands"),
            banks: call.dtype("banks").unwrap_or(Dtype::F32),
            codes: None,
            gate: Vec::new(),
            open: Vec::new(),
            widening: 1.0,
            decided: [Vec::new(), Vec::new()],
        }
    }

    fn event(&mut self, call: &Call, event: usize, rows: usize) {
        let codes = call
            .optional("decisions")
            .map(|codes| &codes.data[event * rows..][..rows]);
        self.codes = codes.map(|codes| codes.iter().map(|code| *code as u8).collect());
    }

    /// Returns the decisions that differ from the reference's, but are allowed because of the errors of the logits.
    fn others(&self) -> Vec<Other> {
        let [gates, lanes] = &self.decided;
        let mut others = Vec::new();
        for (start, (open, allowed)) in self.open.iter().enumerate() {
            for gate in (0..2).filter(|gate| *open || *gate == gates[start]) {
                for lane in (0..BANKS).filter(|lane| allowed[*lane]) {
                    if (gate, lane as i32) != (gates[start], lanes[start]) {
                        others.push(Other {
                            start,
                            value: vec![f64::from(4 * gate + lane as i32)],
                            error: vec![0.0],
                        });
                    }
                }
            }
        }
        others
    }
}

impl Numerics<Varied> for Follow {
    fn site(&mut self, site: &Site, tensor: &mut Numbers<Varied>) {
        let width = tensor.cols();
        if let "ram" | "router.input" | "x" = site.name {
            let square = |row: &[Varied]| {
                let x: Vec<f64> = row.iter().map(|x| x.value()).collect();
                Terms::dot(&x, &x, half_spacing(Dtype::F32, 1.0)).widening()
            };
            let rows = tensor.data.chunks(width.max(1));
            self.widening = rows.map(square).fold(self.widening, f64::max);
        }
        match (site.name, self.fault) {
            ("ram", _) => tensor.data.iter_mut().for_each(|x| *x = stored(*x, self.banks)),
            ("ffn.gate", Some("no_silu")) => self.gate.clone_from(&tensor.data),
            ("ffn.silu", Some("no_silu")) => tensor.data.clone_from(&self.gate),
            ("ffn.up", Some("interleave_off")) => {
                tensor.data.chunks_exact_mut(width).for_each(|row| row.rotate_left(1))
            }
            ("ffn.h", Some("plane_lost")) => {
                let rows = tensor.data.chunks_exact_mut(width);
                rows.for_each(|row| row[width.div_ceil(2)..].fill(Varied::ZERO));
            }
            _ => {}
        }
        if let (Some(dtype), "ffn.n" | "ffn.h") = (self.operands, site.name) {
            for row in tensor.data.chunks_exact_mut(width) {
                // E4M3 has a scale for each row, which maps the largest number to 448.
                let largest = row.iter().fold(0f64, |largest, x| largest.max(x.value().abs()));
                let scale = if dtype == Dtype::F8_E4M3 && largest > 0.0 {
                    largest / 448.0
                } else {
                    1.0
                };
                row.iter_mut().for_each(|x| *x = rounded(*x, dtype, scale));
            }
        }
    }

    fn choice(&mut self, site: &Site, choice: &mut Choice<Varied>) {
        let gates = site.name == "router.gate";
        let candidates = choice.scores.cols();
        for (row, index) in choice.indices.iter_mut().enumerate() {
            let scores = choice.scores.row(row);
            let best = scores[*index as usize];
            let error = |score: &Varied| self.widening * score.error();
            let near = |other: &Varied| other.value() + error(other) >= best.value() - error(&best);
            let mut allowed: Vec<bool> = scores
                .iter()
                .map(|score| error(score) + error(&best) > 0.0 && near(score))
                .collect();
            allowed[*index as usize] = true;
            if let Some(codes) = &self.codes {
                let own = if gates { codes[row] >> 2 } else { codes[row] & 3 };
                if allowed[usize::from(own)] {
                    *index = own.into();
                }
            }
            let logit = scores[candidates - 1].value();
            match (self.fault, gates) {
                (Some("gate_at_zero"), true) if logit == 0.0 => *index = 1,
                (Some("gate_inverted"), true) => *index = 1 - *index,
                (Some("always_open"), true) => *index = 1,
                (Some("never_open"), true) => *index = 0,
                (Some("last_bank"), false) => {
                    let last = (0..candidates).rev().find(|at| scores[*at] == best);
                    *index = last.map_or(*index, |last| last as i32);
                }
                _ => {}
            }
            match gates {
                true => self.open.push((allowed[0] && allowed[1], Vec::new())),
                false => {
                    let at = self.decided[1].len();
                    self.open[at].1 = allowed;
                }
            }
            self.decided[usize::from(!gates)].push(*index);
        }
    }
}
