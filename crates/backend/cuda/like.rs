//! Variants that are defined by their differences from another variant: `like` and `each` of a header.

use toml::{Table, Value};

use super::calls::words;

/// Puts into every variant with `like = "NAME"` what it leaves out of that one, which stands before it: of launches, and of
/// `prepare`, those with the same name are merged key by key, others added; a launch with an entry point of its own does not take the
/// other's call, and one with either does not take its `each`. `more_scratch` is scratch besides the other's, and `in_sequence` says
/// for names of the other's sequence what stands in their place. With `changes_of = "NAME"`, it has the launches, `more_scratch` and,
/// unless it has a sequence of its own, `in_sequence` of one more variant, too. Launches that `without` names come from neither. Then
/// gives all launches the keys of `each`.
pub fn resolve(header: &mut Table) -> Result<(), String> {
    let Some(Value::Array(variants)) = header.get_mut("variant") else {
        return Ok(());
    };
    let written = variants.clone();
    for at in 0..variants.len() {
        let (before, rest) = variants.split_at_mut(at);
        let Some(variant) = rest[0].as_table_mut() else {
            continue;
        };
        let named = |variants: &[Value], key: &str, name: &Value| {
            let mut tables = variants.iter().filter_map(Value::as_table);
            let found = tables.find(|other| other.get("name") == Some(name)).cloned();
            found.ok_or_else(|| format!("{key} = {name}: no variant before it has that name"))
        };
        let mut others = Vec::new();
        let kinds: [(_, _, Add); 2] = [("changes_of", &written[..at], change), ("like", &*before, inherit)];
        for (key, variants, add) in kinds {
            let name = variant.remove(key);
            let other = name.map(|name| named(variants, key, &name).map(|other| (add, other)));
            others.extend(other.transpose()?);
        }
        if let Some(without) = variant.remove("without") {
            leave_out(&mut others, &without)?;
        }
        for (add, other) in &others {
            add(variant, other)?;
        }
        let Some(each) = variant.remove("each") else { continue };
        let each = each.as_table().ok_or("each: expected keys of launches")?;
        for launch in variant
            .get_mut("launch")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            launch.as_table_mut().into_iter().for_each(|launch| fill(launch, each));
        }
    }
    Ok(())
}

/// How a variant is completed from another.
type Add = fn(&mut Table, &Table) -> Result<(), String>;

/// The name of a launch.
fn name(launch: &Value) -> Option<&Value> {
    launch.get("name").or(launch.get("entry"))
}

/// Adds the changes that another variant makes to the one that it is like.
fn change(variant: &mut Table, other: &Table) -> Result<(), String> {
    for key in ["launch", "more_scratch"] {
        let Some(Value::Array(more)) = other.get(key) else {
            continue;
        };
        let own = variant.entry(key).or_insert_with(|| Value::Array(Vec::new()));
        let own = own.as_array_mut().ok_or_else(|| format!("{key}: expected a list"))?;
        let new = more
            .iter()
            .filter(|more| !own.iter().any(|own| name(own) == name(more)));
        let new: Vec<Value> = new.cloned().collect();
        own.extend(new);
    }
    if let Some(Value::Table(changed)) = other.get("in_sequence")
        && !variant.contains_key("sequence")
    {
        let own = variant
            .entry("in_sequence")
            .or_insert_with(|| Value::Table(Table::new()));
        fill(own.as_table_mut().ok_or("in_sequence: expected a table")?, changed);
    }
    Ok(())
}

/// Leaves launches out of the variants of which another has the rest.
fn leave_out(others: &mut [(Add, Table)], without: &Value) -> Result<(), String> {
    let left_out = without
        .as_array()
        .ok_or_else(|| format!("without = {without}: expected names of launches"))?;
    let launches = others.iter_mut().filter_map(|(_, other)| other.get_mut("launch"));
    let mut launches: Vec<_> = launches.filter_map(Value::as_array_mut).collect();
    for stray in left_out {
        let mut all = launches.iter().flat_map(|launches| launches.iter());
        if !all.any(|launch| name(launch) == Some(stray)) {
            return Err(format!("without: no other variant has a launch {stray}"));
        }
    }
    for launches in &mut launches {
        launches.retain(|launch| name(launch).is_none_or(|name| !left_out.contains(name)));
    }
    Ok(())
}

fn inherit(variant: &mut Table, model: &Table) -> Result<(), String> {
    if let Some(more) = variant.remove("more_scratch") {
        let (Value::Array(more), Some(Value::Array(others))) = (&more, model.get("scratch")) else {
            return Err(format!(
                "more_scratch = {more}: expected a list, as the other's scratch is"
            ));
        };
        variant.insert("scratch".into(), Value::Array([&others[..], more].concat()));
    }
    if let Some(changed) = variant.remove("in_sequence") {
        let sequence = model.get("sequence").and_then(Value::as_str);
        let (Some(changed), Some(sequence)) = (changed.as_table(), sequence) else {
            return Err(format!(
                "in_sequence = {changed}: expected a table, and a sequence of the other"
            ));
        };
        let mut left: Vec<&String> = changed.keys().collect();
        let sequence = words(sequence, |word| {
            left.retain(|name| *name != word);
            changed.get(word).and_then(Value::as_str).map(String::from)
        });
        if let Some(stray) = left.first() {
            return Err(format!("in_sequence: the other's sequence has no '{stray}'"));
        }
        variant.insert("sequence".into(), Value::String(sequence));
    }
    for list in ["launch", "prepare"] {
        let (Some(Value::Array(own)), Some(Value::Array(others))) = (variant.get(list), model.get(list)) else {
            continue;
        };
        let (mut merged, mut own) = (Vec::new(), own.clone());
        for other in others {
            match own.iter().position(|launch| name(launch) == name(other)) {
                Some(at) => {
                    let mut launch = own.remove(at);
                    if let (Some(launch), Some(other)) = (launch.as_table_mut(), other.as_table()) {
                        let (call, entry) = (launch.contains_key("call"), launch.contains_key("entry"));
                        let mut other = other.clone();
                        // Another variant that is called may prepare nothing.
                        other.retain(|key, _| match key {
                            "call" | "with" => call || !entry,
                            "each" => !call && !entry,
                            _ => true,
                        });
                        fill(launch, &other);
                    }
                    merged.push(launch);
                }
                None => merged.push(other.clone()),
            }
        }
        merged.extend(own);
        variant.insert(list.into(), Value::Array(merged));
    }
    fill(variant, model);
    Ok(())
}

/// Adds the keys that are not there.
fn fill(table: &mut Table, others: &Table) {
    for (key, value) in others {
        if !table.contains_key(key) {
            table.insert(key.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<Table, String> {
        let mut header: Table = text.parse().unwrap();
        resolve(&mut header).map(|()| header)
    }

    #[test]
    fn what_is_left_out_is_the_others() {
        let short = r#"
            [[variant]]
            name = "a"
            needs = ["x"]
            launch = [{ name = "one", entry = "f", grid = [1] }, { entry = "g", grid = [2] }]
            [[variant]]
            name = "b"
            like = "a"
            launch = [{ entry = "g", cluster = [4] }, { name = "one", entry = "h" }, { entry = "new" }]
            [[variant]]
            name = "c"
            like = "b"
            needs = []
            each = { cluster = [2] }
        "#;
        let long = r#"
            [[variant]]
            name = "a"
            needs = ["x"]
            launch = [{ name = "one", entry = "f", grid = [1] }, { entry = "g", grid = [2] }]
            [[variant]]
            name = "b"
            needs = ["x"]
            launch = [{ name = "one", entry = "h", grid = [1] }, { entry = "g", grid = [2], cluster = [4] }, { entry = "new" }]
            [[variant]]
            name = "c"
            needs = []
            launch = [
                { name = "one", entry = "h", grid = [1], cluster = [2] },
                { entry = "g", grid = [2], cluster = [4] },
                { entry = "new", cluster = [2] },
            ]
        "#;
        assert_eq!(resolved(short).unwrap(), long.parse().unwrap());
    }

    #[test]
    fn scratch_is_added_and_sequences_are_changed() {
        let text = |more: &str| {
            format!(
                "[[variant]]\nname = 'a'\nsequence = 'begin 8(mix attend) mix_end'\nscratch = [{{ name = 'x' }}]\n\
                 [[variant]]\nname = 'b'\nlike = 'a'\n{more}"
            )
        };
        let found = resolved(&text(
            "more_scratch = [{ name = 'y' }]\nin_sequence = { mix = 'mix tap', begin = '' }",
        ));
        let found = &found.unwrap()["variant"][1];
        assert_eq!(found["sequence"].as_str(), Some(" 8(mix tap attend) mix_end"));
        let scratch = found["scratch"].as_array().unwrap();
        assert_eq!(
            (scratch[0]["name"].as_str(), scratch[1]["name"].as_str()),
            (Some("x"), Some("y"))
        );
        let error = resolved(&text("in_sequence = { mixed = 'mix' }")).unwrap_err();
        assert_eq!(error, "in_sequence: the other's sequence has no 'mixed'");
        assert!(resolved(&text("more_scratch = 'y'")).is_err());
    }

    #[test]
    fn launches_of_the_other_are_left_out() {
        let text = |more: &str| {
            format!(
                "[[variant]]\nname = 'a'\nsequence = 'begin mix push end'\n\
                 launch = [{{ name = 'begin', call = 'o.v' }}, {{ name = 'push', entry = 'p' }}, {{ entry = 'mix' }}, \
                 {{ entry = 'end' }}]\n[[variant]]\nname = 'b'\nlike = 'a'\n{more}"
            )
        };
        let found = resolved(&text(
            "without = ['push', 'mix']\nin_sequence = { push = 'store', mix = '' }\n\
             launch = [{ name = 'store', entry = 's' }, { name = 'end', grid = [2] }]",
        ));
        let found = found.unwrap();
        let launches = |at: usize| found["variant"][at]["launch"].clone();
        let wanted: Table = "launch = [{ name = 'begin', call = 'o.v' }, { name = 'end', grid = [2], entry = 'end' }, \
            { name = 'store', entry = 's' }]"
            .parse()
            .unwrap();
        assert_eq!(launches(1), wanted["launch"]);
        // The other keeps them.
        assert_eq!(launches(0).as_array().unwrap().len(), 4);
        assert!(found["variant"][1].get("without").is_none());
        assert_eq!(found["variant"][1]["sequence"].as_str(), Some("begin  store end"));
        for (stray, why) in [
            (
                "without = ['push', 'pull']",
                "without: no other variant has a launch \"pull\"",
            ),
            ("without = 'push'", "without = \"push\": expected names of launches"),
        ] {
            assert_eq!(resolved(&text(stray)).unwrap_err(), why);
        }
        let error = resolved("[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\nlike = 'a'\nwithout = ['x']");
        assert_eq!(error.unwrap_err(), "without: no other variant has a launch \"x\"");
    }

    #[test]
    fn changes_of_one_variant_are_made_to_another() {
        let found = resolved(
            "[[variant]]\nname = 'a'\nsequence = 'begin mix end'\nscratch = [{ name = 'x' }]\n\
             launch = [{ name = 'begin', call = 'o.v', with = {} }, { name = 'mix', entry = 'm' }, { name = 'end', entry = 'e' }]\n\
             [[variant]]\nname = 'b'\nlike = 'a'\nmore_scratch = [{ name = 'y' }]\nin_sequence = { mix = 'mix tap' }\n\
             launch = [{ name = 'tap', entry = 't' }, { name = 'begin', entry = 'own' }]\n\
             [[variant]]\nname = 'c'\nlike = 'a'\nin_sequence = { end = '' }\nlaunch = [{ name = 'mix', entry = 'n' }]\n\
             [[variant]]\nname = 'd'\nlike = 'c'\nchanges_of = 'b'\nlaunch = [{ name = 'mix', grid = [2] }]",
        );
        let found = &found.unwrap()["variant"][3];
        assert_eq!(found["sequence"].as_str(), Some("begin mix tap "));
        assert_eq!(found["scratch"].as_array().unwrap().len(), 2);
        let launches: Table =
            "launch = [{ name = 'begin', entry = 'own' }, { name = 'mix', grid = [2], entry = 'n' }, \
            { name = 'end', entry = 'e' }, { name = 'tap', entry = 't' }]"
                .parse()
                .unwrap();
        assert_eq!(found["launch"], launches["launch"]);
        let error = resolved("[[variant]]\nname = 'a'\nchanges_of = 'b'").unwrap_err();
        assert_eq!(error, "changes_of = \"b\": no variant before it has that name");
    }

    #[test]
    fn changes_of_a_sequence_are_not_made_to_another() {
        let text = |more: &str| {
            format!(
                "[[variant]]\nname = 'a'\nsequence = 'mix end'\nscratch = [{{ name = 'x' }}]\n\
                 launch = [{{ name = 'mix', entry = 'm' }}, {{ name = 'end', entry = 'e' }}]\n\
                 [[variant]]\nname = 'b'\nlike = 'a'\nin_sequence = {{ mix = 'tap fill mix' }}\n\
                 more_scratch = [{{ name = 'y' }}]\n\
                 launch = [{{ name = 'tap', entry = 't' }}, {{ name = 'fill', entry = 'f' }}]\n\
                 [[variant]]\nname = 'c'\nlike = 'a'\nchanges_of = 'b'\nsequence = 'mix tap'\n{more}"
            )
        };
        // From both.
        let found = resolved(&text("without = ['fill', 'end']")).unwrap();
        let found = &found["variant"][2];
        assert_eq!(found["sequence"].as_str(), Some("mix tap"));
        assert_eq!(found["scratch"].as_array().unwrap().len(), 2);
        let launches: Table = "launch = [{ name = 'mix', entry = 'm' }, { name = 'tap', entry = 't' }]"
            .parse()
            .unwrap();
        assert_eq!(found["launch"], launches["launch"]);
        let error = resolved(&text("without = ['fill', 'begin']")).unwrap_err();
        assert_eq!(error, "without: no other variant has a launch \"begin\"");
    }

    #[test]
    fn another_call_or_an_entry_prepares_by_its_own_words() {
        let found = resolved(
            "[[variant]]\nname = 'a'\nlaunch = [{ name = 'f', call = 'o.v', with = { x = 'y' }, each = { of = 'L', count = 2 } }]\n\
             [[variant]]\nname = 'b'\nlike = 'a'\nlaunch = [{ name = 'f', call = 'o.w' }]\n\
             [[variant]]\nname = 'c'\nlike = 'a'\nlaunch = [{ name = 'f', entry = 'e' }]\n\
             [[variant]]\nname = 'd'\nlike = 'a'\nlaunch = [{ name = 'f', with = { x = 'z' } }]",
        );
        let found = found.unwrap();
        let keys = [1, 2, 3].map(|at| {
            let launch = found["variant"][at]["launch"][0].as_table().unwrap();
            launch.keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(keys, ["call name with", "entry name", "call each name with"]);
    }

    #[test]
    fn the_other_must_stand_before() {
        let error = resolved("[[variant]]\nname = \"a\"\nlike = \"b\"\n[[variant]]\nname = \"b\"").unwrap_err();
        assert_eq!(error, "like = \"b\": no variant before it has that name");
    }
}
