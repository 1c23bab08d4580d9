//! What a fit says of how the bytes are stored, and of what they were made.

use super::levels::Level;
use super::problem::Problem;
use super::recode::factor_name;
use super::search::{MakerFit, StorageForm};
use super::verify::View;
use super::{Cause, Finding};
use ulplab_core::formats::{Format, Global, Scale};

/// The findings that the fit itself is.
pub fn findings(problem: &Problem, view: &View, fit: &MakerFit) -> Vec<Finding> {
    let finding = |cause, detail: String, count, of, unit| Finding {
        cause,
        detail,
        others: Vec::new(),
        place: None,
        region: of,
        count,
        of,
        unit,
        example: None,
    };
    let storage = view.storage;
    let elements = problem.grid.rows * problem.grid.cols;
    let mut findings = Vec::new();
    if let Some(input) = fit.maker.input {
        findings.push(finding(
            input.cause,
            format!("the input is {}", input.detail),
            elements,
            elements,
            "codes",
        ));
    }
    if fit.maker.format.element != problem.format.element {
        let detail = format!("codes are {}, with scales for it", fit.maker.format.element.name);
        findings.push(finding(Cause::Encoding, detail, elements, elements, "codes"));
    }
    let codes = |way: StorageForm| {
        (0..elements).filter(move |at| storage.code(problem, way.order, *at) != storage.code(problem, 0, *at))
    };
    if fit.codes.order != 0 {
        let order = &storage.code_orders.0[fit.codes.order];
        findings.push(finding(
            order.cause,
            format!("codes are {}", order.name),
            codes(fit.codes).count(),
            elements,
            "codes",
        ));
    }
    if let Some(recode) = fit.codes.recode.map(|recode| &storage.code_recodes[recode]) {
        findings.push(finding(
            recode.cause,
            format!("codes are {}", recode.name),
            elements,
            elements,
            "codes",
        ));
    }
    let groups = problem.grid.len();
    if fit.scales.order != 0 {
        let order = &storage.scale_orders.0[fit.scales.order];
        let moved = (0..groups)
            .filter(|group| storage.scale(problem, fit.scales.order, *group) != storage.scale(problem, 0, *group));
        findings.push(finding(
            order.cause,
            format!("scales are {}", order.name),
            moved.count(),
            groups,
            "scales",
        ));
    }
    if let Some(recode) = fit.scales.recode.map(|recode| &storage.scale_recodes[recode]) {
        let with = if view.under_stored {
            ", and codes are made with these"
        } else {
            ""
        };
        let detail = format!("{}{with}", recode.finding());
        findings.push(finding(recode.cause, detail, groups, groups, "scales"));
    }
    if fit.level != Level::AsStored {
        let globals = fit.maker.globals.len();
        let detail = level(problem, fit);
        findings.push(finding(Cause::GlobalScale, detail, globals, globals, "global scales"));
    }
    findings.retain(|finding| finding.count > 0);
    findings
}

/// The finding that all bytes are as `maker` makes them, but the scales are read as those of `reader`.
pub fn read_otherwise(problem: &Problem, maker: &Format, reader: &Format) -> Finding {
    let scale = |format: &Format| format.scaling.map(|scaling| scaling.scale);
    let name = |format: &Format| scale(format).map_or("", |scale| scale.rule().0);
    let finding = |cause, detail, count, unit| Finding {
        cause,
        detail,
        others: Vec::new(),
        place: None,
        region: count,
        count,
        of: count,
        unit,
        example: None,
    };
    match (scale(maker), scale(reader)) {
        (Some(Scale::E4m3(made)), Some(Scale::E4m3(read))) => {
            let detail = match made.stored == read.stored {
                false => format!(
                    "stored is {}, as {} stores it, but it is read as {}",
                    meaning(made.stored),
                    name(maker),
                    meaning(read.stored)
                ),
                true => format!(
                    "blocks are scaled to {} by {}, but they are read as scaled to {}",
                    made.span,
                    name(maker),
                    read.span
                ),
            };
            finding(Cause::GlobalScale, detail, problem.stored.global.len(), "global scales")
        }
        _ => {
            let detail = format!(
                "scales are the reciprocals of what is meant, as {} stores them",
                name(maker)
            );
            finding(Cause::Encoding, detail, problem.grid.len(), "scales")
        }
    }
}

/// What the stored global scale is.
fn level(problem: &Problem, fit: &MakerFit) -> String {
    let stored = problem.stored.global.first().copied().unwrap_or(f32::NAN);
    if !(stored.is_finite() && stored > 0.0) {
        return format!("stored is {stored:e}, expected a positive number");
    }
    let expected = fit.maker.globals.first().copied().unwrap_or(f32::NAN);
    let amax = problem.amax_under(0);
    let near = |value: f32| (value / stored - 1.0).abs() < 1e-6;
    let own = [
        (Global::Amax, amax),
        (Global::Decode, amax / 2688.0),
        (Global::Encode, 2688.0 / amax),
    ];
    let read = match fit.maker.format.scaling.map(|scaling| scaling.scale) {
        Some(Scale::E4m3(rule)) => format!(", but it is read as {}", meaning(rule.stored)),
        _ => String::new(),
    };
    match fit.level {
        Level::As(global) => format!("stored is {}{read}", meaning(global)),
        Level::Own if own.iter().any(|(_, value)| near(*value)) => {
            let global = own
                .iter()
                .find(|(_, value)| near(*value))
                .map_or(Global::Absent, |(global, _)| *global);
            format!("stored is {}{read}", meaning(global))
        }
        _ => {
            let factor = f64::from(stored) / f64::from(expected);
            format!(
                "stored is {stored:e}, {} against the {expected:e} the bytes were made under",
                factor_name(factor, 1e-5)
            )
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
