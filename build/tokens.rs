//! Streams of tokens: without comments, as text, and the paths that they mention.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Tokens without documentation, and without the commas at the end of lists that come and go with line breaks.
pub fn without_comments(tokens: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept: Vec<TokenTree> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let inner = usize::from(is_punct(tokens.get(at + 1), '!'));
        let attribute = is_punct(tokens.get(at), '#')
            .then(|| tokens.get(at + 1 + inner))
            .flatten();
        let document = |group: &proc_macro2::Group| {
            let first = group.stream().into_iter().next();
            group.delimiter() == Delimiter::Bracket && matches!(first, Some(TokenTree::Ident(word)) if word == "doc")
        };
        if matches!(attribute, Some(TokenTree::Group(group)) if document(group)) {
            at += 2 + inner;
            continue;
        }
        kept.push(match &tokens[at] {
            TokenTree::Group(group) => TokenTree::Group(proc_macro2::Group::new(
                group.delimiter(),
                without_comments(group.stream()),
            )),
            other => other.clone(),
        });
        at += 1;
    }
    if is_punct(kept.last(), ',') {
        kept.pop();
    }
    kept.into_iter().collect()
}

fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// Tokens as text, the same however they were spaced.
pub fn plain(tokens: TokenStream) -> String {
    tokens.to_string()
}

/// The paths that tokens mention, fields and methods aside: of `use a::{b, c}` both `a::b` and `a::c`. That of a macro which
/// is called ends in `!`.
pub fn mentions(tokens: &TokenStream) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    scan(tokens.clone(), &[], &mut found);
    found
}

fn scan(tokens: TokenStream, before: &[String], found: &mut BTreeSet<Vec<String>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let colons = |at: usize| is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':');
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                scan(group.stream(), &[], found);
                at += 1;
            }
            TokenTree::Ident(word) => {
                let after = |sign| at > 0 && is_punct(tokens.get(at - 1), sign);
                let field = after('.') && !(at > 1 && is_punct(tokens.get(at - 2), '.'));
                let continued = after(':') && at > 1 && is_punct(tokens.get(at - 2), ':');
                let fresh = !field && !continued && !after('\'') && (!after('$') || word == "crate");
                let mut path: Vec<String> = before.to_vec();
                path.push(word.to_string());
                at += 1;
                while colons(at) {
                    match tokens.get(at + 2) {
                        Some(TokenTree::Ident(word)) => path.push(word.to_string()),
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                            scan(group.stream(), &path, found);
                            at += 3;
                            break;
                        }
                        _ => break,
                    }
                    at += 3;
                }
                if is_punct(tokens.get(at), '!') && matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) {
                    path.push("!".into());
                }
                if fresh {
                    found.insert(path);
                }
            }
            _ => at += 1,
        }
    }
}
