//! What a pod may receive and send.

use super::{
    error::{AnnotationError, Misfit},
    json::{self, Decode},
    quantity::Quantity,
};
use crate::keys::annotation::NETWORK_QOS;
use koord_model::NetRate;

/// The annotation [`NETWORK_QOS`]. What it does not say is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkLimits {
    pub ingress: NetRate,
    pub egress: NetRate,
}

/// As it is written: bits in a second.
#[derive(Default)]
struct Said {
    ingress: Bits,
    egress: Bits,
}

json::object!(Said {
    "ingressLimit" => ingress,
    "egressLimit" => egress,
});

#[derive(Default)]
struct Bits(NetRate);

// === impl NetworkLimits ===

impl NetworkLimits {
    /// Reads the annotation, whose limits are quantities of bits in a second.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or a limit is no
    /// [`Quantity`] or below zero.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        let Said { ingress, egress } = json::parse(NETWORK_QOS, text)?;
        Ok(Self {
            ingress: ingress.0,
            egress: egress.0,
        })
    }
}

// === impl Bits ===

impl Decode for Bits {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        let mut amount = Quantity::default();
        amount.decode(json)?;
        self.0 = NetRate::of_bits(amount.unsigned_value()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn limits_are_said_in_bits_and_one_may_be_missing() {
        for (text, ingress, egress) in [
            (
                r#"{"ingressLimit":"100M","egressLimit":"1Gi"}"#,
                12_500_000,
                134_217_728,
            ),
            (r#"{"IngressLimit":"8k"}"#, 1_000, 0),
            (r#"{"egressLimit":4096,"ingressLimit":null}"#, 0, 512),
            // Not none of it.
            (r#"{"egressLimit":"7","ingressLimit":"0"}"#, 0, 1),
            (r#"{"egressRequest":"50M","enable":true}"#, 0, 0),
            ("{}", 0, 0),
            ("null", 0, 0),
        ] {
            let limits = NetworkLimits::parse(text).unwrap();
            let bytes = (limits.ingress.bytes(), limits.egress.bytes());
            assert_eq!(bytes, (ingress, egress), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_named_with_its_place() {
        for (text, path, reason) in [
            (
                r#"{"ingressLimit":"-1"}"#,
                "$.ingressLimit",
                "amount -1 is outside 0 to 9223372036854775807",
            ),
            (
                r#"{"egressLimit":"50%"}"#,
                "$.egressLimit",
                "\"50%\" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei",
            ),
            (
                r#"{"ingressLimit":"1M","egressLimit":[]}"#,
                "$.egressLimit",
                "value is a list, not a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi",
            ),
            ("[]", "$", "value is a list, not an object"),
        ] {
            let error = NetworkLimits::parse(text).unwrap_err();
            assert_eq!((error.key, error.path.as_str()), (NETWORK_QOS, path));
            let mut last: &dyn Error = &error;
            while let Some(source) = last.source() {
                last = source;
            }
            assert_eq!(last.to_string(), reason, "{text}");
        }
    }
}
