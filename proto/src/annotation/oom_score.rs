//! How soon a pod's processes are killed for want of memory.

use super::{
    error::{AnnotationError, Misfit, Reason},
    json,
};
use crate::keys::annotation::{OOM_SCORE_ADJ, OOM_SCORE_ADJ_SPEC};
use koord_model::OomScoreAdj;
use std::collections::BTreeMap;

/// The annotation [`OOM_SCORE_ADJ_SPEC`]. A number out of range is an error of its container alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomScoreAdjSpec {
    containers: BTreeMap<String, i64>,
}

/// Reads the annotation [`OOM_SCORE_ADJ`], a plain number.
///
/// # Errors
///
/// When the text, white space around it included, is no whole number from −1,000 to 1,000
/// ([`OomScoreAdj::MIN`] to [`OomScoreAdj::MAX`]).
pub fn oom_score_adj(text: &str) -> Result<OomScoreAdj, AnnotationError> {
    let number = text.parse().map_err(|_| Reason::WrongType {
        expected: json::range(OomScoreAdj::new).into(),
        found: json::shown(text),
    });
    let number = number.map_err(Misfit::from);
    number
        .and_then(in_range)
        .map_err(|misfit| misfit.of(OOM_SCORE_ADJ))
}

fn in_range(number: i64) -> Result<OomScoreAdj, Misfit> {
    Ok(OomScoreAdj::new(number).map_err(Box::new)?)
}

// === impl OomScoreAdjSpec ===

impl OomScoreAdjSpec {
    /// Reads the annotation: a number for each container by its name.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or the number of a
    /// container is no integer of 64 bits.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        let containers = json::parse(OOM_SCORE_ADJ_SPEC, text)?;
        Ok(Self { containers })
    }

    /// What it says of a container, if anything.
    ///
    /// # Errors
    ///
    /// When the number of this container is outside −1,000 to 1,000 ([`OomScoreAdj::MIN`] to
    /// [`OomScoreAdj::MAX`]).
    pub fn of(&self, container: &str) -> Result<Option<OomScoreAdj>, AnnotationError> {
        let number = self.containers.get(container).copied();
        let score = number.map(in_range).transpose();
        score.map_err(|misfit| misfit.inside(json::step(container)).of(OOM_SCORE_ADJ_SPEC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    fn told(error: &AnnotationError) -> String {
        let mut told = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            told.push_str(&format!(": {error}"));
            cause = error.source();
        }
        told
    }

    /// The texts that Go's `strconv.ParseInt` takes.
    #[test]
    fn a_plain_number_is_a_score() {
        for (text, score) in [
            ("500", 500),
            ("-1000", -1_000),
            ("+7", 7),
            ("007", 7),
            ("0", 0),
        ] {
            assert_eq!(oom_score_adj(text).unwrap().get(), score, "{text}");
        }
        for (text, reason) in [
            (
                "1001",
                "value is out of range: oom_score_adj 1001 is outside -1000 to 1000",
            ),
            (
                "-1001",
                "value is out of range: oom_score_adj -1001 is outside -1000 to 1000",
            ),
            ("", "value is \"\", not a whole number from -1000 to 1000"),
            (
                "1e3",
                "value is \"1e3\", not a whole number from -1000 to 1000",
            ),
            (
                " 5",
                "value is \" 5\", not a whole number from -1000 to 1000",
            ),
            (
                "9223372036854775808",
                "value is \"9223372036854775808\", not a whole number from -1000 to 1000",
            ),
        ] {
            let error = oom_score_adj(text).unwrap_err();
            let expected =
                format!("annotation koordinator.sh/oom-score-adj is unusable at $: {reason}");
            assert_eq!(told(&error), expected);
        }
    }

    #[test]
    fn each_container_has_its_own_and_its_own_error() {
        let spec = OomScoreAdjSpec::parse(r#"{"main":-900,"side":1001,"none":null}"#).unwrap();
        assert_eq!(spec.of("main").unwrap().map(OomScoreAdj::get), Some(-900));
        assert_eq!(spec.of("other").unwrap(), None);
        // What Go makes of null in a map of numbers.
        assert_eq!(spec.of("none").unwrap().map(OomScoreAdj::get), Some(0));
        assert_eq!(
            told(&spec.of("side").unwrap_err()),
            "annotation koordinator.sh/oom-score-adj-spec is unusable at $.side: \
             value is out of range: oom_score_adj 1001 is outside -1000 to 1000"
        );
        let error = OomScoreAdjSpec::parse(r#"{"main":"5"}"#).unwrap_err();
        assert_eq!(error.path, "$.main");
    }
}
