//! What anyone may write never panics, and rules that hold for every input do.

use koord_proto::{
    annotation::{Quantity, ResourceStatus},
    policy::NodePolicy,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn keys_of_another_case_mean_the_same(
        lower in "[0-9]{1,3}",
        upper in any::<[bool; 6]>(),
    ) {
        let key: String = "cpuset"
            .chars()
            .zip(upper)
            .map(|(c, upper)| if upper { c.to_ascii_uppercase() } else { c })
            .collect();
        let plain = ResourceStatus::parse(&format!(r#"{{"cpuset":"{lower}"}}"#));
        let other = ResourceStatus::parse(&format!(r#"{{"{key}":"{lower}"}}"#));
        prop_assert_eq!(plain.unwrap(), other.unwrap());
    }

    #[test]
    fn a_quantity_is_its_number_times_its_suffix(
        number in 0..1_000_000_i64,
        (suffix, factor) in prop_oneof![
            Just(("", 1_i64)),
            Just(("k", 1_000)),
            Just(("Ki", 1_024)),
            Just(("M", 1_000_000)),
            Just(("Mi", 1_048_576)),
            Just(("e9", 1_000_000_000)),
            Just(("Gi", 1_073_741_824)),
        ],
        negative in any::<bool>(),
    ) {
        let sign = if negative { "-" } else { "" };
        let quantity: Quantity = format!("{sign}{number}{suffix}").parse().unwrap();
        let expected = if negative { -number * factor } else { number * factor };
        prop_assert_eq!(quantity.value(), expected);
        let milli: Quantity = format!("{sign}{number}m").parse().unwrap();
        let whole = (number + 999) / 1_000;
        prop_assert_eq!(milli.value(), if negative { -whole } else { whole });
    }

    #[test]
    fn no_quantity_panics(text in "[-+0-9.eEinumkKMGTP]{0,40}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.is_positive(), quantity.value() > 0);
            prop_assert_eq!(quantity.is_zero(), quantity.value() == 0);
        }
    }

    #[test]
    fn no_policy_panics(text in prop_oneof![
        any::<String>(),
        "(kind: (Node|NodeSLO|List)|metadata:|  name: x|spec:|items:|- |\\{|\\}|---|&a|\\*a|\n|  ){0,24}",
    ]) {
        if let Ok(parsed) = NodePolicy::parse_stream(&text, None) {
            prop_assert!(parsed.policy.topology.is_none());
        }
    }
}
