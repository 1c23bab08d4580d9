//! Comparisons of sizes with constants in the sources of kernels.
//!
//! A small lexer: it finds `size < 128`, `size % 8 == 0` and the like, where `size` is an `int` parameter of a kernel, or a name that
//! [`ALIASES`] explains. Code of planted faults does not count, nor do conditions of loops, which end for every size.

use std::collections::{BTreeMap, BTreeSet};

use ulplab::backend::cuda::Source;
use ulplab::backend::cuda::expr::eval;
use ulplab::backend::cuda::header::Launch;

/// Names that functions within kernels have for what a launch depends on.
const ALIASES: &[(&str, &str, &str)] = &[
    ("compressor", "dim", "D"),
    ("linear", "rows", "B"),
    ("mhc_pre", "dim", "C"),
    ("top_k", "n", "N"),
];

/// Comparisons that are not of sizes: the file or operation, the name, and why.
const OTHERS: &[(&str, &str, &str)] = &[
    (
        "fp8_gemm/split.cuh",
        "B",
        "`few_tokens`, which the header has as one condition",
    ),
    (
        "fp8_gemm/split.cuh",
        "K",
        "`few_tokens`, which the header has as one condition",
    ),
    (
        "lib/formats.cuh",
        "N",
        "a template's parameter, how many codes a thread has",
    ),
    (
        "record/layout.cuh",
        "slot_bytes",
        "the type of indices: a case has one or the other",
    ),
    (
        "mhc_pre/parts.cuh",
        "tokens",
        "those of one thread block, which are four or eight unless few are left",
    ),
];

/// The words and operators of a text.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut joined = false;
    for c in text.chars() {
        let word = c.is_alphanumeric() || c == '_';
        match tokens.last_mut() {
            Some(last) if joined && word && last.ends_with(|c: char| c.is_alphanumeric() || c == '_') => last.push(c),
            Some(last)
                if joined && matches!((&last[..], c), ("<" | ">" | "=" | "!", '=') | ("-", '>') | (":", ':')) =>
            {
                last.push(c);
            }
            _ if c.is_whitespace() => {}
            _ => tokens.push(c.into()),
        }
        joined = !c.is_whitespace();
    }
    tokens
}

/// Code without comments, planted faults and directives, but with the bodies of macros.
fn code(text: &str) -> String {
    let text = text
        .split_once("*/")
        .filter(|_| text.starts_with("/*"))
        .map_or(text, |(_, code)| code);
    // For each open `#if`, whether it is of a planted fault, and whether its lines count.
    let mut open: Vec<(bool, bool)> = Vec::new();
    let mut code = String::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        let directive = line.trim_start();
        if directive.starts_with("#if") {
            let fault = directive.contains("MUTANT_");
            open.push((fault, !fault || directive.contains("ifndef")));
        } else if directive.starts_with("#el") {
            if let Some((true, counts)) = open.last_mut() {
                *counts = !directive.contains("MUTANT_");
            }
        } else if directive.starts_with("#endif") {
            open.pop();
        } else if open.iter().all(|(_, counts)| *counts) && !directive.starts_with("#include") {
            code += line.trim_end_matches('\\').trim_start_matches("#define");
            code.push('\n');
        }
    }
    code
}

/// The expressions of whole constants.
fn constants(tokens: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let starts = tokens
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[0] == "constexpr" && pair[1] == "int");
    for (start, _) in starts {
        let statement = tokens[start + 2..]
            .split(|token| token == ";")
            .next()
            .unwrap_or_default();
        for one in statement.split(|token| token == ",") {
            if let [name, equals, value @ ..] = one
                && equals == "="
            {
                found.insert(name.clone(), value.join(" "));
            }
        }
    }
    found
}

fn is_number(token: &str) -> bool {
    token.chars().all(|c| c.is_ascii_digit())
}

fn is_constant(token: &str) -> bool {
    is_number(token)
        || token.len() > 1
            && token
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Replaces named constants by their values; `None` if a name has no value, as parameters of templates have none.
fn resolved(words: &[String], constants: &BTreeMap<String, String>) -> Option<String> {
    let of = |word: &String| match is_number(word) || !is_constant(word) {
        true => Some(word.clone()),
        false => {
            let mut others = constants.clone();
            let value = tokens(&others.remove(word)?);
            Some(format!("({})", resolved(&value, &others)?))
        }
    };
    words
        .iter()
        .map(of)
        .collect::<Option<Vec<_>>>()
        .map(|words| words.join(" "))
}

/// A function, a struct or a kernel of a source: the words that it has, and its conditions, each a name and the rest, such as `<= 8`.
#[derive(Default)]
struct Definition {
    words: BTreeSet<String>,
    conditions: BTreeSet<(String, String)>,
}

/// Conditions on sizes in the sources of an operation.
pub(super) struct Conditions {
    op: String,
    /// By name; a kernel by the part of its name before the first key. Those of one name count together.
    definitions: BTreeMap<String, Definition>,
    /// The parameters of each kernel, by the part of its name before the first key.
    parameters: Vec<(String, Vec<String>)>,
}

impl Conditions {
    pub(super) fn new(source: &Source) -> Self {
        let files: Vec<(&str, Vec<String>)> = source.texts().map(|(name, text)| (name, tokens(&code(text)))).collect();
        let all: BTreeMap<String, String> = files.iter().flat_map(|(_, tokens)| constants(tokens)).collect();
        let mut found = Self {
            op: source.op.clone(),
            definitions: BTreeMap::new(),
            parameters: files.iter().flat_map(|(_, tokens)| parameters(tokens)).collect(),
        };
        for (file, tokens) in &files {
            // Those of the file itself come first, where files have the same name for others.
            let mut all = all.clone();
            all.extend(constants(tokens));
            found.define(file, tokens, &all);
        }
        found
    }

    /// Adds the definitions of a file.
    fn define(&mut self, file: &str, tokens: &[String], constants: &BTreeMap<String, String>) {
        let (mut start, mut depth) = (0, 0);
        for at in 0..tokens.len() {
            let namespace = || tokens[start..at].iter().any(|token| token == "namespace");
            match &tokens[at][..] {
                "{" if depth == 0 && namespace() => start = at + 1,
                "{" => depth += 1,
                "}" if depth > 1 => depth -= 1,
                "}" | ";" if depth <= 1 && !(depth == 1 && tokens[at] == ";") => {
                    let name = defined(&tokens[start..at]);
                    let definition = self.definitions.entry(name.unwrap_or_default()).or_default();
                    definition.words.extend(tokens[start..at].iter().cloned());
                    let places = start.max(1)..at.min(tokens.len() - 2);
                    definition
                        .conditions
                        .extend(places.filter_map(|at| condition(file, tokens, at, constants)));
                    (start, depth) = (at + 1, 0);
                }
                _ => {}
            }
        }
    }

    /// Conditions in a kernel and in all that it calls.
    fn reached(&self, kernel: &str) -> BTreeSet<(String, String)> {
        let mut open = vec![kernel];
        let (mut seen, mut conditions) = (BTreeSet::new(), BTreeSet::new());
        while let Some((name, definition)) = open.pop().and_then(|name| self.definitions.get_key_value(name)) {
            if seen.insert(name) {
                conditions.extend(definition.conditions.iter().cloned());
                open.extend(
                    definition
                        .words
                        .iter()
                        .map(String::as_str)
                        .filter(|word| self.definitions.contains_key(*word)),
                );
            }
        }
        conditions
    }
    /// Conditions on the sizes that a launch has as arguments, as expressions.
    pub(super) fn of(&self, launch: &Launch, is_size: &dyn Fn(&str) -> bool) -> Vec<String> {
        let entry = launch.entry.as_deref().unwrap_or_default();
        let entry = entry.split('{').next().unwrap_or_default();
        let parameters = self
            .parameters
            .iter()
            .find(|(name, parameters)| name == entry && parameters.len() == launch.args.len());
        let named = parameters
            .map_or(&launch.args, |(_, parameters)| parameters)
            .iter()
            .zip(&launch.args);
        let mut names: BTreeMap<&str, &str> = named.map(|(name, size)| (&name[..], &size[..])).collect();
        names.extend(launch.args.iter().map(|size| (&size[..], &size[..])));
        names.extend(
            ALIASES
                .iter()
                .filter(|(op, ..)| *op == self.op)
                .map(|(_, name, size)| (*name, *size)),
        );
        let known = self.reached(entry).into_iter();
        let known = known.filter_map(|(name, rest)| Some(format!("{} {rest}", names.get(&name[..])?)));
        known.filter(|text| is_size(text)).collect()
    }
}

/// The comparison whose left side is the token at a place, if it is one.
fn condition(
    file: &str,
    tokens: &[String],
    at: usize,
    constants: &BTreeMap<String, String>,
) -> Option<(String, String)> {
    let (name, operator) = (&tokens[at], &tokens[at + 1]);
    let computed = matches!(&tokens[at - 1][..], "+" | "-" | "*" | "/" | "%" | "." | "->" | "::");
    let of_size = tokens[at - 1] == "." && name.len() == 1 && name.chars().all(char::is_uppercase);
    let compares = matches!(&operator[..], "<" | "<=" | ">" | ">=" | "==" | "!=" | "%");
    let other = OTHERS.iter().any(|(of, of_name, _)| *of == file && *of_name == name);
    if !compares || computed && !of_size || other || in_loop(&tokens[..at]) {
        return None;
    }
    let ends = |word: &String| !(is_constant(word) || matches!(&word[..], "*" | "/" | "-" | "+"));
    let rest = &tokens[at + 2..];
    let mut words = rest[..rest.iter().position(ends).unwrap_or(rest.len())].to_vec();
    let after = rest.get(words.len()).map_or("", |word| &word[..]);
    if words.is_empty() || !matches!(after, ")" | "&" | "|" | "?" | ";" | ":" | "==" | "!=" | ",") {
        return None;
    }
    if operator == "%" {
        words.extend(["==".into(), "0".into()]);
    }
    let words = resolved(&words, constants)?;
    Some((name.clone(), format!("{operator} {words}")))
}

/// The name that a definition has: of a kernel the part before its first key, of a struct, or of a function.
fn defined(tokens: &[String]) -> Option<String> {
    let head = tokens.split(|token| token == "{").next()?;
    let after = |word: &str| head.iter().rposition(|token| token == word);
    if let Some(at) = after("KERNEL") {
        return head.get(at + 2).cloned();
    }
    let named = |at: usize| head.get(at + 1).cloned();
    let calls = head
        .windows(2)
        .position(|pair| pair[1] == "(" && !pair[0].starts_with("__") && pair[0] != "alignas");
    calls
        .map(|at| head[at].clone())
        .or_else(|| after("struct").and_then(named))
}

/// Whether a place is in the head of a loop, or in what the compiler asserts.
fn in_loop(before: &[String]) -> bool {
    let mut depth = 0;
    for at in (1..before.len()).rev() {
        match &before[at][..] {
            ")" => depth += 1,
            "(" if depth > 0 => depth -= 1,
            "(" => {
                if matches!(&before[at - 1][..], "for" | "static_assert") {
                    return true;
                }
            }
            "{" | "}" => return false,
            _ => {}
        }
    }
    false
}

/// Names of kernels up to the first key, each with the names of its parameters.
fn parameters(tokens: &[String]) -> Vec<(String, Vec<String>)> {
    let starts = (0..tokens.len().saturating_sub(2)).filter(|at| tokens[*at] == "KERNEL" && tokens[at + 1] == "(");
    let of = |at: usize| {
        let closes = |from: usize| {
            let mut depth = 0;
            tokens[from..].iter().position(|token| {
                depth += i32::from(token == "(") - i32::from(token == ")");
                depth == 0
            })
        };
        let list = at + 1 + closes(at + 1)? + 1;
        let end = list + closes(list)?;
        let parameters = tokens.get(list + 1..end)?.split(|token| token == ",");
        Some((
            tokens[at + 2].clone(),
            parameters.filter_map(|one| one.last().cloned()).collect(),
        ))
    };
    starts.filter_map(of).collect()
}

/// The values that constants in expressions have, for a look around them.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = i64> {
    tokens(text)
        .into_iter()
        .filter(|token| is_number(token))
        .filter_map(|token| eval(&token, &|_| None).ok())
}

#[test]
fn comparisons_are_found() {
    let text = r#"constexpr int MOST = 4 * 32, FEW = MOST / 2;
        template <class T> __device__ void f(int n, int N) {
            if (n <= 8 && N > FEW) return;
            for (int i = 0; i < N; i++) {}
            for (; n < 3;) {}
        #ifdef MUTANT_LOST
            if (n > 77) return;
        #endif
            const int k = N % 4 ? n + 5 > 6 : 2;
        }
        __device__ void not_called(int N) { if (N > 9) f(1, 2); }
        #define ENTRIES(T) \
            KERNEL(f_##T, __launch_bounds__(128))(const T *x, int n, int N) { f<2>(n, N); }
        KERNEL(other)(int n) { if (n > 5) {} }"#;
    let tokens = tokens(&code(text));
    let mut found = Conditions {
        op: "f".into(),
        definitions: BTreeMap::new(),
        parameters: parameters(&tokens),
    };
    found.define("f", &tokens, &constants(&tokens));
    let launch = Launch {
        entry: Some("f_{dtype}".into()),
        args: ["x", "B", "N"].map(String::from).to_vec(),
        ..Launch::default()
    };
    assert_eq!(
        found.of(&launch, &|_| true),
        ["N % 4 == 0", "N > ((4 * 32) / 2)", "B <= 8"]
    );
}
