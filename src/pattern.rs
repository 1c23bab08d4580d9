//! Patterns of dotted names: sites, tensors, recipes.

/// Whether the whole of `name` matches `pattern`: `*` stands for any characters but a dot, `**` for any characters, none
/// included; everything else for itself.
pub fn matches(pattern: &str, name: &str) -> bool {
    // reach[i]: the pattern so far can match the first i bytes of the name.
    let name = name.as_bytes();
    let mut reach = vec![false; name.len() + 1];
    reach[0] = true;
    let mut rest = pattern.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let any = byte == b'*' && tail.first() == Some(&b'*');
        rest = if any { &tail[1..] } else { tail };
        if byte == b'*' {
            for i in 0..name.len() {
                reach[i + 1] |= reach[i] && (any || name[i] != b'.');
            }
        } else {
            for i in (0..name.len()).rev() {
                reach[i + 1] = reach[i] && name[i] == byte;
            }
            reach[0] = false;
        }
    }
    reach[name.len()]
}

/// Whether a name matches one of `only`, or that is empty, and none of `skip`.
pub fn selects(only: &[String], skip: &[String], name: &str) -> bool {
    let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
    (only.is_empty() || any(only)) && !any(skip)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stop_at_dots_and_double_stars_do_not() {
        for (pattern, name, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "logits", true),
            ("*", "layers.0", false),
            ("**", "", true),
            ("**", "layers.0.attention.kv", true),
            ("layers.*.output", "layers.12.output", true),
            ("layers.*.output", "layers..output", true),
            ("layers.*.output", "layers.1.ffn.output", false),
            ("layers.**.output", "layers.1.ffn.output", true),
            ("layers.**output", "layers.output", true),
            ("layers.1*.x", "layers.12.x", true),
            ("layers.1*.x", "layers.2.x", false),
            ("*.weight", "a.b.weight", false),
            ("**.weight", "a.b.weight", true),
            ("logits*", "logits", true),
            ("a**b**c", "a.b.b.c", true),
            ("a**b**c", "a.b.b", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("a.b", "a.b", true),
            ("a.b", "axb", false),
            ("größe.*", "größe.é", true),
            ("ab", "a", false),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }
}
