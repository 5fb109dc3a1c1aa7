//! Rust as words: names and punctuation with their lines, no comments, no contents of literals.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A name or one character of punctuation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// The words of a Rust source.
pub(crate) fn words(source: &str) -> Vec<Word> {
    let tokens: TokenStream = source
        .parse()
        .unwrap_or_else(|error| panic!("not Rust: {error}\n{source}"));
    let mut words = Vec::new();
    collect(tokens, &mut words);
    words
}

fn collect(tokens: TokenStream, words: &mut Vec<Word>) {
    for token in tokens {
        let line = token.span().start().line;
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                push(words, line, open);
                let end = group.span_close().start().line;
                collect(group.stream(), words);
                push(words, end, close);
            }
            TokenTree::Ident(name) => push(words, line, &name.to_string()),
            TokenTree::Punct(mark) => push(words, line, &mark.to_string()),
            TokenTree::Literal(_) => push(words, line, "literal"),
        }
    }
}

fn push(words: &mut Vec<Word>, line: usize, text: &str) {
    words.push(Word {
        line,
        text: text.to_owned(),
    });
}

/// The part of a source before the tests at its foot.
pub(crate) fn product_part(source: &str) -> &str {
    source
        .find("\n#[cfg(test)]\nmod tests {")
        .map_or(source, |end| &source[..=end])
}

#[test]
fn words_are_names_and_marks_with_their_lines() {
    let source = "// unsafe\nfn f() { g(\"unsafe\") }";
    let texts: Vec<_> = words(source)
        .into_iter()
        .map(|word| (word.line, word.text))
        .collect();
    let expected = ["fn", "f", "(", ")", "{", "g", "(", "literal", ")", "}"];
    assert_eq!(texts, expected.map(|text| (2, text.to_owned())));
}

#[test]
fn the_product_part_ends_where_the_tests_begin() {
    let source = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(product_part(source), "fn f() {}\n\n");
    assert_eq!(product_part("fn f() {}\n"), "fn f() {}\n");
}
