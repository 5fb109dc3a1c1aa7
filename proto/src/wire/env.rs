//! One variable of a container's environment, in a request that is not decoded: the others are nobody's
//! business.

use super::field::delimited;

/// The value that a CreateContainerRequest gives a variable; the last, if there are several. `None` if
/// it has none, or one that is no UTF-8, which nothing could be joined with.
pub fn env<'a>(request: &'a [u8], name: &str) -> Option<&'a str> {
    let configs = delimited(request, 2);
    let envs = configs.flat_map(|config| delimited(config, 6));
    let named = envs.filter(|env| delimited(env, 1).last() == Some(name.as_bytes()));
    let value = named.last().map(|env| delimited(env, 2).last())?;
    str::from_utf8(value.unwrap_or_default()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::CreateContainerPatch;

    fn request(envs: &[(&str, &str)]) -> Vec<u8> {
        let envs = envs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        CreateContainerPatch {
            envs: envs.collect(),
            ..CreateContainerPatch::default()
        }
        .encode()
    }

    #[test]
    fn the_last_of_a_name_counts() {
        let mut message = request(&[("A", "1"), ("B", "2"), ("A", "3")]);
        assert_eq!(env(&message, "A"), Some("3"));
        assert_eq!(env(&message, "C"), None);
        // As a decoder merges them.
        message.extend(request(&[("B", "")]));
        assert_eq!(env(&message, "B"), Some(""));
        // config { envs { key: "A" value: "\xff" } }
        assert_eq!(env(b"\x12\x08\x32\x06\x0a\x01A\x12\x01\xff", "A"), None);
        // config { envs { key: "A" } }, and what is no message.
        assert_eq!(env(b"\x12\x05\x32\x03\x0a\x01A", "A"), Some(""));
        assert_eq!(env(b"\x12\x05\x32", "A"), None);
    }
}
