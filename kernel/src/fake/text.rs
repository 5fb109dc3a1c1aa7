//! How the kernel reads what is written to its files: a re-telling of `kstrtoull`, `memparse`,
//! `bitmap_parselist` and the reading of `cpu.max`, with their errors.

use koord_model::CpuSet;
use rustix::io::Errno;

/// Bytes of a page on the machines that tests run on.
pub(super) const PAGE: u64 = 4096;

/// The most bytes that a limit can say; the kernel means "none" by it.
pub(super) const NO_LIMIT: u64 = 0x7fff_ffff_ffff_f000;

/// `kstrtoull` with base 0: no white space but one line feed at the end.
pub(super) fn unsigned(text: &str) -> Result<u64, Errno> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    digits(text.strip_prefix('+').unwrap_or(text))
}

/// `kstrtoll` with base 0.
pub(super) fn signed(text: &str) -> Result<i64, Errno> {
    match text.strip_prefix('-') {
        None => i64::try_from(unsigned(text)?).map_err(|_| Errno::RANGE),
        Some(rest) => {
            let magnitude = digits(rest.strip_suffix('\n').unwrap_or(rest))?;
            0_i64.checked_sub_unsigned(magnitude).ok_or(Errno::RANGE)
        }
    }
}

fn digits(text: &str) -> Result<u64, Errno> {
    let (rest, radix) = radix(text);
    if rest.is_empty() || !rest.chars().all(|c| c.is_digit(radix)) {
        return Err(Errno::INVAL);
    }
    u64::from_str_radix(rest, radix).map_err(|_| Errno::RANGE)
}

fn radix(text: &str) -> (&str, u32) {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(rest) => (rest, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    }
}

/// `page_counter_memparse`: bytes with a suffix, in whole pages, or the word for no limit.
pub(super) fn bytes(text: &str, no_limit: &str) -> Result<u64, Errno> {
    let text = text.trim();
    if text == no_limit {
        return Ok(NO_LIMIT);
    }
    let (rest, radix) = radix(text);
    let end = rest
        .find(|c: char| !c.is_digit(radix))
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let number = match number {
        "" => 0,
        number => u64::from_str_radix(number, radix).map_err(|_| Errno::INVAL)?,
    };
    let shift = match suffix {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(Errno::INVAL),
    };
    let bytes = number.saturating_mul(1 << shift);
    Ok((bytes / PAGE * PAGE).min(NO_LIMIT))
}

/// `seq_puts_memcg_tunable`.
pub(super) fn bytes_or_max(bytes: u64) -> String {
    match bytes {
        NO_LIMIT => "max".to_owned(),
        bytes => bytes.to_string(),
    }
}

/// `cpulist_parse` on a machine whose CPUs are numbered from 0 and fewer than `count`.
pub(super) fn cpus(text: &str, count: u32) -> Result<CpuSet, Errno> {
    let mut set = CpuSet::new();
    let separated = text.split(|c: char| c == ',' || c.is_ascii_whitespace());
    for part in separated.filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (cpu(first)?, cpu(last)?);
        if first > last {
            return Err(Errno::INVAL);
        }
        if last >= count {
            return Err(Errno::RANGE);
        }
        for cpu in first..=last {
            set.insert(cpu).map_err(|_| Errno::RANGE)?;
        }
    }
    Ok(set)
}

fn cpu(text: &str) -> Result<u32, Errno> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Errno::INVAL);
    }
    text.parse().map_err(|_| Errno::OVERFLOW)
}

/// `cpu_period_quota_parse`: a quota or `max` (here `None`), and a period if one is given.
pub(super) fn quota_and_period(text: &str) -> Result<(Option<u64>, Option<u64>), Errno> {
    let mut words = text.split_ascii_whitespace();
    let first = words.next().ok_or(Errno::INVAL)?;
    let quota = match leading_number(first) {
        Some(quota) => Some(quota),
        None if first == "max" => None,
        None => return Err(Errno::INVAL),
    };
    Ok((quota, words.next().and_then(leading_number)))
}

/// `sscanf("%llu")`: what follows the digits is not looked at.
fn leading_number(word: &str) -> Option<u64> {
    let end = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    word[..end].parse().ok()
}
