//! Room in an answer that is too long for us: the largest pods of it are left out.
//!
//! Who may make pods may make large ones, and is not to keep what is said of all others from us. A
//! pod that has no more than its part of the room beside the one that is still coming is never left
//! out.

use super::{MAX_LENGTH, PodIssue, Problem, text};
use crate::Issues;
use std::{cmp::Reverse, ops::Range};

/// What is kept of a text that is too long, in bytes: there is room for more of it then.
const KEPT: usize = MAX_LENGTH / 4 * 3;

/// Takes the largest pods out of what has come so far of a list in JSON, and names them. What else is
/// in it stays, however long; the one that is still coming too, which takes room from the others.
pub fn make_room(text: &mut Vec<u8>) -> Issues<PodIssue> {
    keep(text, KEPT)
}

fn keep(text: &mut Vec<u8>, most: usize) -> Issues<PodIssue> {
    let mut over = text.len().saturating_sub(most);
    let mut items = items(text);
    items.sort_by_key(|item| Reverse(item.len()));
    let left_out = items.iter().take_while(|item| {
        let is_one_more = over > 0;
        over = over.saturating_sub(item.len());
        is_one_more
    });
    let left_out = left_out.count();
    items.truncate(left_out);
    items.sort_by_key(|item| item.start);
    let issues = items.iter().map(|item| {
        let item = str::from_utf8(&text[item.start..item.end - 1]);
        text::issue(item.unwrap_or_default(), Problem::NoRoom)
    });
    let issues = issues.collect();
    remove(text, &items);
    issues
}

/// The objects of lists that are fields of the text itself, each with the comma behind it. One that
/// has none yet may not be whole.
fn items(text: &[u8]) -> Vec<Range<usize>> {
    /// Of what is in a list of the text.
    const DEPTH: usize = 2;
    let (mut in_string, mut escaped) = (false, false);
    let (mut depth, mut begin) = (0_usize, None);
    let mut items = Vec::new();
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth == DEPTH {
                    begin = (*byte == b'[').then_some(at + 1);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == DEPTH => {
                items.extend(begin.map(|begin| begin..at + 1));
                begin = begin.map(|_| at + 1);
            }
            _ => {}
        }
    }
    items
}

/// Takes these parts out, which are in order.
fn remove(text: &mut Vec<u8>, parts: &[Range<usize>]) {
    let ends = parts.iter().skip(1).map(|part| part.start);
    let mut length = parts.first().map_or(text.len(), |part| part.start);
    for (part, end) in parts.iter().zip(ends.chain([text.len()])) {
        text.copy_within(part.end..end, length);
        length += end - part.end;
    }
    text.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a text, and who is left out of it.
    fn kept(text: &str, most: usize) -> (String, Vec<String>) {
        let mut text = text.as_bytes().to_vec();
        let issues = keep(&mut text, most);
        let names = issues.iter().map(|issue| issue.pod.clone()).collect();
        (String::from_utf8(text).unwrap(), names)
    }

    const POD: [&str; 4] = [
        r#"{"metadata":{"name":"a","x":[1,2]}}"#,
        r#"{"metadata":{"name":"b","x":"],\"}{ 1234567890"}}"#,
        r#"{"metadata":{"name":"c"}}"#,
        r#"{"metadata":{"name":"d","x":"12345678901234567890123456789"}}"#,
    ];

    #[test]
    fn the_largest_are_left_out_until_there_is_room() {
        let head = r#"{"kind":"PodList","metadata":{"a":1,"b":{}},"items":["#;
        let [a, b, c, d] = POD;
        let whole = format!("{head}{a},{b},{c},{a},{d}]}}");
        assert_eq!(kept(&whole, whole.len()), (whole.clone(), vec![]));
        // The last one of all may not be whole.
        let without_b = format!("{head}{a},{c},{a},{d}]}}");
        let name = |name: &str| format!("?/{name}");
        assert_eq!(
            kept(&whole, whole.len() - 1),
            (without_b.clone(), vec![name("b")])
        );
        assert_eq!(
            kept(&whole, without_b.len()),
            (without_b.clone(), vec![name("b")])
        );
        let without_a = format!("{head}{c},{a},{d}]}}");
        let both = vec![name("a"), name("b")];
        assert_eq!(kept(&whole, without_b.len() - 1), (without_a, both));
        let without_all = format!("{head}{d}]}}");
        let all = ["a", "b", "c", "a"].map(name).to_vec();
        assert_eq!(kept(&whole, 0), (without_all, all));
    }

    #[test]
    fn what_has_come_so_far_may_end_anywhere() {
        let [a, b, ..] = POD;
        let whole = format!(r#"{{"items":[{b},{a},{b}],"kind":"PodList"}}"#);
        for length in 0..=whole.len() {
            let (left, names) = kept(&whole[..length], 0);
            let count = [1, 2].map(|pods| 10 + b.len() + 1 + (pods - 1) * (a.len() + 1));
            let expected = count.iter().filter(|count| length >= **count).count();
            assert_eq!(names.len(), expected, "{left}");
            let rest = format!("{}{}", left, &whole[length..]);
            let list: serde_json::Value = serde_json::from_str(&rest).unwrap();
            assert_eq!(list["items"].as_array().unwrap().len(), 3 - expected);
        }
    }

    #[test]
    fn what_is_no_list_stays_as_it_is() {
        for text in [
            "",
            "]]]],,,",
            r#"{"a":{"b":[1,2,3]}}"#,
            "    ",
            r#"\"{[a,"#,
            r#"{"metadata":{"a":[1,2],"b":3},"spec":{"c":[{},{}]}}"#,
        ] {
            assert_eq!(kept(text, 0), (text.to_owned(), vec![]));
        }
    }

    #[test]
    fn what_is_no_pod_in_a_list_is_left_out_as_one_without_a_name() {
        let nameless = vec!["?/?".to_owned(); 2];
        assert_eq!(kept("[[1,2],[3,4", 0), ("[[2],[4".to_owned(), nameless));
    }
}
