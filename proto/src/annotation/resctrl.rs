//! One pod's own shares of caches and of the bandwidth to memory.

use super::{
    error::{AnnotationError, Misfit, Reason},
    json::{self, Decode},
};
use crate::keys::annotation::RESCTRL;
use koord_model::{Bandwidth, CacheRange, CacheShares, PerCache, RangeError};

/// Reads the annotation [`RESCTRL`]. A cache that it does not name, and a half that it leaves out, is
/// the pod's whole.
///
/// # Errors
///
/// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), a range is neither
/// empty nor two percentages that [`CacheRange::new`] takes, a bandwidth is outside 0 to 100 percent, or the
/// number of a cache is outside 0 to 4,294,967,295.
pub fn cache_shares(text: &str) -> Result<CacheShares, AnnotationError> {
    let Resctrl { llc, mb } = json::parse(RESCTRL, text)?;
    let ranges = llc.each.into_iter();
    let bandwidths = mb.each.into_iter();
    Ok(CacheShares {
        ranges: PerCache {
            all: llc.all.range.0.unwrap_or_default(),
            each: ranges
                .filter_map(|it| Some((it.cache.0, it.range.0?)))
                .collect(),
        },
        bandwidth: PerCache {
            all: mb.all.percent.0.unwrap_or_default(),
            each: bandwidths
                .filter_map(|it| Some((it.cache.0, it.percent.0?)))
                .collect(),
        },
    })
}

#[derive(Default)]
struct Resctrl {
    llc: Llc,
    mb: Mb,
}

json::object!(Resctrl {
    "llc" => llc,
    "mb" => mb,
});

#[derive(Default)]
struct Llc {
    all: LlcOfAll,
    each: Vec<LlcOfCache>,
}

json::object!(Llc {
    "schemata" => all,
    "schemataPerCache" => each,
});

#[derive(Default)]
struct LlcOfAll {
    range: Range,
}

json::object!(LlcOfAll {
    "range" => range,
});

#[derive(Default)]
struct LlcOfCache {
    cache: CacheNumber,
    range: Range,
}

json::object!(LlcOfCache {
    "cacheID" => cache,
    "range" => range,
});

#[derive(Default)]
struct Mb {
    all: MbOfAll,
    each: Vec<MbOfCache>,
}

json::object!(Mb {
    "schemata" => all,
    "schemataPerCache" => each,
});

#[derive(Default)]
struct MbOfAll {
    percent: Percent,
}

json::object!(MbOfAll {
    "percent" => percent,
});

#[derive(Default)]
struct MbOfCache {
    cache: CacheNumber,
    percent: Percent,
}

json::object!(MbOfCache {
    "cacheID" => cache,
    "percent" => percent,
});

/// Two percentages; none in the list is as good as no list.
#[derive(Default)]
struct Range(Option<CacheRange>);

/// A percentage, of which 0 is as good as none.
#[derive(Default)]
struct Percent(Option<Bandwidth>);

#[derive(Default)]
struct CacheNumber(u32);

// === impl Decode ===

impl Decode for Range {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        let mut bounds: Vec<i64> = Vec::new();
        bounds.decode(json)?;
        self.0 = match bounds[..] {
            [] => None,
            [start, end] => Some(CacheRange::new(start, end).map_err(Box::new)?),
            _ => {
                let expected = "a list of two percentages".into();
                let found = json::shown(json);
                return Err(Reason::WrongType { expected, found }.into());
            }
        };
        Ok(())
    }
}

impl Decode for Percent {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.0 = match json::is_null(json) {
            true => None,
            false => json::ranged(json, bandwidth)?,
        };
        Ok(())
    }
}

impl Decode for CacheNumber {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.0 = match json::is_null(json) {
            true => 0,
            false => json::ranged(json, cache_number)?,
        };
        Ok(())
    }
}

fn bandwidth(percent: i64) -> Result<Option<Bandwidth>, RangeError> {
    match percent {
        0 => Ok(None),
        percent => Bandwidth::new(percent)
            .map(Some)
            .map_err(|error| RangeError { min: 0, ..error }),
    }
}

fn cache_number(number: i64) -> Result<u32, RangeError> {
    u32::try_from(number).map_err(|_| RangeError {
        what: "cacheID",
        value: number.into(),
        min: 0,
        max: u32::MAX.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    fn shown(text: &str) -> String {
        match cache_shares(text) {
            Ok(shares) => shares.to_string(),
            Err(error) => {
                let reason = error.source().unwrap();
                let cause = reason.source().map(|it| format!(": {it}"));
                format!("{error}: {reason}{}", cause.unwrap_or_default())
            }
        }
    }

    #[test]
    fn shares_are_said_for_all_caches_and_for_each() {
        for (text, expected) in [
            ("{}", "cache 0-100%, bandwidth 100%"),
            ("null", "cache 0-100%, bandwidth 100%"),
            (
                r#"{"llc":{"schemata":{"range":[0,30]}},"mb":{"schemata":{"percent":55}}}"#,
                "cache 0-30%, bandwidth 55%",
            ),
            (
                r#"{"llc":{"schemata":{"range":[10,80]},"schemataPerCache":[{"cacheID":1,"range":[20,50]}]}}"#,
                "cache 10-80% (20-50% of 1), bandwidth 100%",
            ),
            (
                r#"{"mb":{"schemataPerCache":[{"cacheID":0,"percent":20},{"cacheID":1,"percent":0}]}}"#,
                "cache 0-100%, bandwidth 100% (20% of 0)",
            ),
            // The spelling of upstream's proposal.
            (
                r#"{"LLC":{"schemata":{"range":[]},"schemataPerCache":[{"cacheid":0,"range":[0,50]}]}}"#,
                "cache 0-100% (0-50% of 0), bandwidth 100%",
            ),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_place() {
        let begin = "annotation node.koordinator.sh/resctrl is unusable at $";
        for (text, expected) in [
            (
                r#"{"llc":{"schemata":{"range":[0,101]}}}"#,
                ".llc.schemata.range: value is out of range: end 101 is outside 1 to 100",
            ),
            (
                r#"{"llc":{"schemata":{"range":[50,50]}}}"#,
                ".llc.schemata.range: value is out of range: end 50 is outside 51 to 100",
            ),
            (
                r#"{"llc":{"schemata":{"range":[1]}}}"#,
                ".llc.schemata.range: value is \"[1]\", not a list of two percentages",
            ),
            (
                r#"{"mb":{"schemata":{"percent":101}}}"#,
                ".mb.schemata.percent: value is out of range: percent 101 is outside 0 to 100",
            ),
            (
                r#"{"mb":{"schemata":{"percent":"50"}}}"#,
                ".mb.schemata.percent: value is \"50\", not a whole number from 0 to 100",
            ),
            (
                r#"{"mb":{"schemataPerCache":[{"cacheID":-1,"percent":50}]}}"#,
                ".mb.schemataPerCache[0].cacheID: value is out of range: cacheID -1 is outside 0 to 4294967295",
            ),
        ] {
            assert_eq!(shown(text), format!("{begin}{expected}"), "{text}");
        }
    }
}
