//! An operation of a user's, as its experiment file says it: its reference is not run.

use super::{BufferLine, CaseLine, Description, JudgementLine, ScalarLine};
use crate::studies::kernels::operations::{Output, OwnOp, Size, expressions, type_of};
use ulplab_core::list::distinct;
use ulplab_operations::ops::Case;

/// Its description, with these cases.
pub fn describe(op: &OwnOp, cases: &[Case]) -> Description {
    let line = |name: &str, role, dtype: &Option<String>, shape: &[Size]| BufferLine {
        name: name.into(),
        role,
        dtypes: distinct(cases.iter().map(|case| type_of(dtype, case))),
        shape: expressions(shape),
        such_as: None,
    };
    let inputs = op.inputs.iter();
    let inputs = inputs.map(|input| line(&input.name, "in", &input.dtype, &input.shape));
    let outputs = op.outputs.iter();
    let outputs = outputs.map(|output| line(&output.name, "out", &output.dtype, &output.shape));
    let of_key = |name: &str| -> Vec<String> {
        let named = cases.iter().flat_map(|case| &case.keys).filter(|(key, _)| *key == name);
        distinct(named.map(|(_, value)| value.clone()))
    };
    let scalar = |name: &String| ScalarLine {
        name: name.clone(),
        r#type: "number",
        values: of_key(name),
    };
    let dtypes = of_key("dtype");
    Description {
        op: op.name.clone(),
        doc: op.doc.clone(),
        buffers: inputs.chain(outputs).collect(),
        scalars: op.scalars.keys().map(scalar).collect(),
        sizes: op.sizes.clone(),
        keys: Vec::from_iter((!dtypes.is_empty()).then(|| ("dtype".to_string(), dtypes))),
        judgements: op.outputs.iter().map(judgement).collect(),
        cases: cases.iter().map(CaseLine::new).collect(),
    }
}

fn judgement(output: &Output) -> JudgementLine {
    let how = match output.bound {
        None => "bits must be equal".into(),
        Some(bound) if bound.by_reference => "each element must be within the bound that the reference says".into(),
        Some(bound) => format!(
            "each element y must be within {:e} |y| + {:e} of the reference's",
            bound.relative, bound.absolute
        ),
    };
    JudgementLine {
        output: output.name.clone(),
        rule: if output.bound.is_none() { "equal" } else { "within" },
        short: how.clone(),
        how,
        why: output.why.clone(),
        such_as: None,
    }
}
