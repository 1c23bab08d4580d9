//! Reports a wrong order or encoding of the stored bytes, a faulty input of the quantizer, or a wrong global scale.

use super::levels::Level;
use super::maker::Maker;
use super::problem::Problem;
use super::recode::factor_name;
use super::verify::View;
use super::{Cause, Finding, Scope};
use ulplab_core::formats::{Format, Global, Scale};

/// Returns findings about a wrong order, a wrong encoding, a faulty input or a wrong global scale of the whole tensor.
pub fn findings(view: &View, maker: &Maker) -> Vec<Finding> {
    let storage = view.storage;
    let problem = storage.problem;
    let elements = problem.grid.rows * problem.grid.cols;
    let codes = Scope::everywhere(elements, "codes");
    let scales = Scope::everywhere(problem.grid.groups(), "scales");
    let mut findings = Vec::new();
    if let Some(input) = maker.input {
        findings.push(codes.finding(input.cause, format!("the input is {}", input.detail), elements));
    }
    if maker.format.element != problem.format.element {
        let detail = format!("codes are {}, with scales for it", maker.format.element.name);
        findings.push(codes.finding(Cause::Encoding, detail, elements));
    }
    let with = if view.under_stored {
        ", and codes are made with these"
    } else {
        ""
    };
    for (scope, ways, form, with) in [
        (&codes, &storage.codes, view.codes, ""),
        (&scales, &storage.scales, view.scales, with),
    ] {
        let Scope { of, unit, .. } = *scope;
        if form.order != 0 {
            let order = &ways.orders[form.order];
            let stored = |order, at| ways.stored(order, at);
            let moved = (0..of).filter(|at| stored(form.order, *at) != stored(0, *at));
            findings.push(scope.finding(order.cause, format!("{unit} are {}", order.name), moved.count()));
        }
        if let Some(recode) = ways.recode(form) {
            findings.push(scope.finding(recode.cause, format!("{unit} are {}{with}", recode.name), of));
        }
    }
    if maker.level != Level::AsStored {
        let globals = maker.globals.len();
        let scope = Scope::everywhere(globals, "global scales");
        findings.push(scope.finding(Cause::GlobalScale, level(problem, maker), globals));
    }
    findings.retain(|finding| finding.count > 0);
    findings
}

/// Returns a finding about a wrong scale convention: the rule of `maker` reproduces the bytes, but readers decode the scales as
/// the rule of `reader` defines them.
pub fn read_otherwise(problem: &Problem, maker: &Format, reader: &Format) -> Finding {
    let scale = |format: &Format| format.scaling.map(|scaling| scaling.scale);
    let name = |format: &Format| scale(format).map_or("", |scale| scale.rule().0);
    let (cause, detail, count, unit) = match (scale(maker), scale(reader)) {
        (Some(Scale::E4m3(made)), Some(Scale::E4m3(read))) => {
            let (maker, stored, meant) = (name(maker), meaning(made.stored), meaning(read.stored));
            let (span, other) = (made.span, read.span);
            let detail = match made.stored == read.stored {
                false => format!("stored is {stored}, as {maker} stores it, but it is read as {meant}"),
                true => format!("blocks are scaled to {span} by {maker}, but they are read as scaled to {other}"),
            };
            (Cause::GlobalScale, detail, problem.stored.global.len(), "global scales")
        }
        _ => {
            let rule = name(maker);
            let detail = format!("scales are the reciprocals of what is meant, as {rule} stores them");
            (Cause::Encoding, detail, problem.grid.groups(), "scales")
        }
    };
    Scope::everywhere(count, unit).finding(cause, detail, count)
}

/// Describes how the stored global scale differs from the global scale that the reference rule expects.
fn level(problem: &Problem, maker: &Maker) -> String {
    let stored = problem.stored.global.first().copied().unwrap_or(f32::NAN);
    if !(stored.is_finite() && stored > 0.0) {
        return format!("stored is {stored:e}, expected a positive number");
    }
    let expected = maker.globals.first().copied().unwrap_or(f32::NAN);
    let amax = problem.amax_under(0);
    let near = |value: f32| (value / stored - 1.0).abs() < 1e-6;
    let own = [
        (Global::Amax, amax),
        (Global::Decode, amax / 2688.0),
        (Global::Encode, 2688.0 / amax),
    ];
    let read = match maker.format.scaling.map(|scaling| scaling.scale) {
        Some(Scale::E4m3(rule)) => format!(", but it is read as {}", meaning(rule.stored)),
        _ => String::new(),
    };
    let stored_as = match maker.level {
        Level::As(global) => Some(global),
        Level::Own => own.iter().find(|(_, value)| near(*value)).map(|(global, _)| *global),
        _ => None,
    };
    match stored_as {
        Some(global) => format!("stored is {}{read}", meaning(global)),
        None => {
            let factor = factor_name(f64::from(stored) / f64::from(expected), 1e-5);
            format!("stored is {stored:e}, {factor} against the {expected:e} the bytes were made under")
        }
    }
}

fn meaning(stored: Global) -> &'static str {
    match stored {
        Global::Absent => "nothing",
        Global::Amax => "the largest magnitude",
        Global::Decode => "what codes are multiplied by, amax/2688",
        Global::Encode => "what values are multiplied by, 2688/amax",
    }
}
