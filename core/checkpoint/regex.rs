//! The regular expressions that configurations use to name modules: a subset, matched from the beginning of a name as
//! Python's `re.match` does.

/// A parsed expression: characters, `.`, `\d`, `\w`, `\.`, classes, groups, `|`, `*`, `+`, `?`, `^` and `$`.
#[derive(Clone, Debug)]
pub struct Regex(Node);

#[derive(Clone, Debug)]
enum Node {
    /// One character of these ranges, or outside them.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    Start,
    End,
    All(Vec<Node>),
    Any(Vec<Node>),
    /// At least `least` times, and once at most unless `many`.
    Repeat {
        node: Box<Node>,
        least: usize,
        many: bool,
    },
}

impl Regex {
    /// Parses an expression; the error says what is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let chars: Vec<char> = text.chars().collect();
        let mut at = 0;
        let node = any(&chars, &mut at)?;
        match at == chars.len() {
            true => Ok(Self(node)),
            false => Err(format!("')' without '(' at character {at}")),
        }
    }

    /// Whether it matches a beginning of `name`.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        !ends(&self.0, &name, vec![0]).is_empty()
    }
}

fn any(text: &[char], at: &mut usize) -> Result<Node, String> {
    let mut choices = vec![all(text, at)?];
    while text.get(*at) == Some(&'|') {
        *at += 1;
        choices.push(all(text, at)?);
    }
    Ok(Node::Any(choices))
}

fn all(text: &[char], at: &mut usize) -> Result<Node, String> {
    let mut nodes = Vec::new();
    while let Some(next) = text.get(*at).filter(|next| !['|', ')'].contains(next)) {
        let node = one(*next, text, at)?;
        let (least, many) = match text.get(*at) {
            Some('*') => (0, true),
            Some('+') => (1, true),
            Some('?') => (0, false),
            Some('{') => return Err(format!("a count in braces at character {at}")),
            _ => {
                nodes.push(node);
                continue;
            }
        };
        *at += 1;
        // A lazy repetition matches the same names.
        *at += usize::from(text.get(*at) == Some(&'?'));
        nodes.push(Node::Repeat {
            node: Box::new(node),
            least,
            many,
        });
    }
    Ok(Node::All(nodes))
}

fn one(next: char, text: &[char], at: &mut usize) -> Result<Node, String> {
    *at += 1;
    match next {
        '.' => Ok(class(Vec::new(), true)),
        '^' => Ok(Node::Start),
        '$' => Ok(Node::End),
        '\\' => {
            let ranges = escaped(text, at)?;
            Ok(class(ranges, false))
        }
        '[' => {
            let negated = text.get(*at) == Some(&'^');
            *at += usize::from(negated);
            let mut ranges = Vec::new();
            loop {
                let next = *text.get(*at).ok_or("'[' without ']'")?;
                *at += 1;
                match (next, text.get(*at), text.get(*at + 1)) {
                    (']', ..) => return Ok(class(ranges, negated)),
                    ('\\', ..) => ranges.extend(escaped(text, at)?),
                    (low, Some('-'), Some(&high)) if high != ']' => {
                        ranges.push((low, high));
                        *at += 2;
                    }
                    (only, ..) => ranges.push((only, only)),
                }
            }
        }
        '(' => {
            if text.get(*at) == Some(&'?') {
                match text.get(*at + 1) {
                    Some(':') => *at += 2,
                    _ => return Err(format!("a group with '(?' at character {at}")),
                }
            }
            let node = any(text, at)?;
            match text.get(*at) {
                Some(')') => *at += 1,
                _ => return Err("'(' without ')'".into()),
            }
            Ok(node)
        }
        '*' | '+' | '?' => Err(format!("'{next}' with nothing before it at character {at}")),
        other => Ok(class(vec![(other, other)], false)),
    }
}

fn class(ranges: Vec<(char, char)>, negated: bool) -> Node {
    Node::Class { ranges, negated }
}

fn escaped(text: &[char], at: &mut usize) -> Result<Vec<(char, char)>, String> {
    let next = *text.get(*at).ok_or("a backslash at the end")?;
    *at += 1;
    match next {
        'd' => Ok(vec![('0', '9')]),
        'w' => Ok(vec![('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')]),
        other if other.is_ascii_alphanumeric() => Err(format!("'\\{other}'")),
        other => Ok(vec![(other, other)]),
    }
}

/// All places where a match from one of `starts` may end, in order and without repetition.
fn ends(node: &Node, name: &[char], starts: Vec<usize>) -> Vec<usize> {
    let mut found: Vec<usize> = match node {
        Node::Start => starts.into_iter().filter(|at| *at == 0).collect(),
        Node::End => starts.into_iter().filter(|at| *at == name.len()).collect(),
        Node::Class { ranges, negated } => {
            let fits = |c: &char| ranges.iter().any(|(low, high)| (low..=high).contains(&c)) != *negated;
            let next = |at: usize| name.get(at).filter(|c| fits(c)).map(|_| at + 1);
            starts.into_iter().filter_map(next).collect()
        }
        Node::All(nodes) => nodes.iter().fold(starts, |starts, node| ends(node, name, starts)),
        Node::Any(nodes) => nodes.iter().flat_map(|node| ends(node, name, starts.clone())).collect(),
        Node::Repeat { node, least, many } => {
            let mut found = if *least == 0 { starts.clone() } else { Vec::new() };
            let mut last = starts;
            loop {
                last = ends(node, name, last);
                last.retain(|at| !found.contains(at));
                found.extend(&last);
                if last.is_empty() || !many {
                    break found;
                }
            }
        }
    };
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::Regex;

    #[test]
    fn names_match_as_in_python() {
        for (pattern, name, want) in [
            (".*lm_head", "model.lm_head", true),
            ("lm_head", "model.lm_head", false),
            (r".*mlp\.gate$", "model.layers.0.mlp.gate", true),
            (r".*mlp\.gate$", "model.layers.0.mlp.gate_proj", false),
            (r"model\.layers\.[0-2]\.", "model.layers.1.mlp", true),
            (r"model\.layers\.[0-2]\.", "model.layers.3.mlp", false),
            (r".*\.(q|k|v)_proj", "a.k_proj", true),
            (r".*\.(?:q|k|v)_proj", "a.o_proj", false),
            (r"layers\.\d+?\.x", "layers.12.x", true),
            (r"[^.]*$", "a.b", false),
            (r"(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaac", false),
        ] {
            assert_eq!(Regex::parse(pattern).unwrap().matches(name), want, "{pattern} {name}");
        }
        for wrong in ["a{2}", "(a", "a)", "[a", r"\b", "(?!a)", "*"] {
            assert!(Regex::parse(wrong).is_err(), "{wrong}");
        }
    }
}
