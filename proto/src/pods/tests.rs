use super::*;
use crate::annotation::{ExtendedContainer, ExtendedResourceSpec, ExtendedResources};
use koord_model::MilliCpu;
use std::error::Error;

fn read(text: &str) -> Parsed {
    Reader::default().read(text, |_| true).unwrap()
}

fn names(parsed: &Parsed) -> Vec<&str> {
    parsed.pods.iter().map(|pod| pod.name.as_str()).collect()
}

/// What was left out, and the last reason of each.
fn issues(parsed: &Parsed) -> Vec<String> {
    let told = parsed.issues.iter().map(|issue| {
        let mut last: &dyn Error = issue;
        while let Some(source) = last.source() {
            last = source;
        }
        let reason = last.to_string();
        let reason = reason.split(" at line").next().unwrap_or_default();
        format!("{issue}: {reason}")
    });
    told.collect()
}

/// As a kubelet answers: no item says its kind.
const KUBELETS: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[
    {"metadata":{"name":"web","namespace":"shop","uid":"uid-1","labels":{"a":"b"},
        "annotations":{"c":"{\"d\":1}"},"managedFields":[{"x":[[[]]]}]},
     "spec":{"containers":[]},"status":{"phase":"Running"}},
    {"metadata":{"name":"db","namespace":"shop","uid":"uid-2","labels":null}}]}"#;

#[test]
fn a_kubelets_answer_is_read() {
    let parsed = read(KUBELETS);
    assert_eq!(names(&parsed), ["web", "db"]);
    let web = Pod {
        uid: PodUid::new("uid-1").unwrap(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        annotations: [("c".to_owned(), r#"{"d":1}"#.to_owned())].into(),
        spec: Arc::default(),
    };
    assert_eq!(*parsed.pods[0], web);
    assert!(parsed.issues.is_empty());
}

#[test]
fn a_resize_that_has_failed_at_the_node_is_known() {
    let stuck = |status: &str| {
        let parsed = read(&format!(
            r#"{{"metadata":{{"name":"a","uid":"uid-a"}},"status":{status}}}"#
        ));
        parsed.pods[0].spec.is_stuck_in_resize
    };
    let condition = |kind: &str, reason: &str| {
        format!(
            r#"{{"conditions":[{{"type":"Ready","status":"True"}},
                {{"type":"{kind}","status":"True"{reason}}}]}}"#
        )
    };
    let failed = condition("PodResizeInProgress", r#","reason":"Error""#);
    assert!(stuck(&failed));
    for other in [
        condition("PodResizeInProgress", ""),
        condition("PodResizePending", r#","reason":"Error""#),
        r#"{"conditions":null}"#.to_owned(),
        r#""Error""#.to_owned(),
        "null".to_owned(),
    ] {
        assert!(!stuck(&other), "{other}");
    }
}

/// A pod with these parts of its spec.
fn with(spec: &str) -> Parsed {
    read(&format!(
        r#"{{"metadata":{{"name":"a","uid":"uid-a"}},"spec":{{{spec}}}}}"#
    ))
}

#[test]
fn containers_request_what_they_say_or_are_limited_to() {
    let parsed = with(
        r#""containers":[
        {"name":"a","resources":{"requests":{"cpu":"250m","memory":"64Mi","hugepages-2Mi":"x"},
            "limits":{"cpu":2,"memory":"1e8"}}},
        {"name":"b","resources":{"limits":{"cpu":0.5}}},
        {"name":"c"}],
        "initContainers":[{"name":"d","resources":{"requests":{"memory":null}}}]"#,
    );
    let container = |name: &str, requests, limits| ContainerSpec {
        name: name.to_owned(),
        requests,
        limits,
    };
    let amounts = |cpu, memory| Resources {
        cpu: Some(MilliCpu(cpu)),
        memory,
    };
    let none = Resources::default();
    let expected = [
        container(
            "a",
            amounts(250, Some(67_108_864)),
            amounts(2_000, Some(100_000_000)),
        ),
        container("b", amounts(500, None), amounts(500, None)),
        container("c", none, none),
        container("d", none, none),
    ];
    let spec = &parsed.pods[0].spec;
    assert_eq!(spec.containers, expected);
    assert_eq!((&spec.batch, &spec.mid), (&None, &None));
    assert_eq!(spec.container("b"), Some(&expected[1]));
    assert_eq!(spec.container("e"), None);
}

#[test]
fn batch_resources_are_those_that_the_webhook_would_have_written() {
    let parsed = with(
        r#""containers":[
        {"name":"a","resources":{
            "requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"},
            "limits":{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"128Mi"}}},
        {"name":"b","resources":{"limits":{"kubernetes.io/batch-cpu":"200"}}},
        {"name":"c","resources":{"requests":{"cpu":"1"}}}],
        "initContainers":[{"name":"d","resources":{"limits":{"kubernetes.io/batch-cpu":"9"}}}]"#,
    );
    let written = ExtendedResourceSpec::parse(
        r#"{"containers":{
        "a":{"requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"},
             "limits":{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"128Mi"}},
        "b":{"requests":{"kubernetes.io/batch-cpu":"200"},
             "limits":{"kubernetes.io/batch-cpu":"200"}}}}"#,
    );
    assert_eq!(parsed.pods[0].spec.batch, Some(written.unwrap().into()));
}

#[test]
fn mid_resources_are_read_as_batch_resources_are_and_apart_from_them() {
    let parsed = with(
        r#""containers":[
        {"name":"a","resources":{
            "requests":{"kubernetes.io/mid-cpu":"500","kubernetes.io/mid-memory":"64Mi"},
            "limits":{"kubernetes.io/mid-cpu":"1k"}}},
        {"name":"b","resources":{"limits":{"kubernetes.io/mid-memory":"1e8"}}},
        {"name":"c","resources":{"limits":{"kubernetes.io/batch-cpu":"7"}}}],
        "initContainers":[{"name":"d","resources":{"limits":{"kubernetes.io/mid-cpu":"9"}}}]"#,
    );
    let amounts = |cpu: Option<u64>, memory| ExtendedResources {
        cpu: cpu.map(MilliCpu),
        memory,
    };
    let a = ExtendedContainer {
        requests: amounts(Some(500), Some(67_108_864)),
        limits: amounts(Some(1_000), None),
    };
    let b = ExtendedContainer {
        requests: amounts(None, Some(100_000_000)),
        limits: amounts(None, Some(100_000_000)),
    };
    let c = ExtendedContainer {
        requests: amounts(Some(7), None),
        limits: amounts(Some(7), None),
    };
    let of = |containers: &[(&str, &ExtendedContainer)]| {
        let owned = |(name, it): &(&str, &ExtendedContainer)| ((*name).to_owned(), (*it).clone());
        Some(ExtendedResourceSpec {
            containers: Some(containers.iter().map(owned).collect()),
        })
    };
    let spec = &parsed.pods[0].spec;
    assert_eq!(spec.mid, of(&[("a", &a), ("b", &b)]));
    assert_eq!(spec.batch.as_deref(), of(&[("c", &c)]).as_ref());
}

#[test]
fn volumes_of_a_pod_with_a_claim_are_known_by_name() {
    let volumes = |text: &str| {
        let parsed = with(&format!(r#""volumes":[{text}]"#));
        let volumes = parsed.pods[0].spec.volumes.iter();
        let volumes = volumes.map(|it| (it.name.clone(), it.is_claim));
        volumes.collect::<Vec<_>>()
    };
    let own = r#"{"name":"tmp","emptyDir":{}},{"name":"none","persistentVolumeClaim":null},
        {"name":"inline","csi":{"driver":"x"}}"#;
    let claim = r#"{"name":"data","persistentVolumeClaim":{"claimName":"data-db-0"}}"#;
    let made = r#"{"name":"scratch","ephemeral":{"volumeClaimTemplate":{"spec":{}}}}"#;
    assert!(volumes(own).is_empty());
    let expected = [
        ("tmp", false),
        ("none", false),
        ("inline", false),
        ("data", true),
        ("scratch", true),
    ];
    let expected = expected.map(|(name, is_claim)| (name.to_owned(), is_claim));
    assert_eq!(volumes(&format!("{own},{claim},{made}")), expected);
}

#[test]
fn what_claims_are_bound_to_is_known_where_they_are_said_too() {
    let pod = r#"{"kind":"Pod","metadata":{"name":"db","namespace":"n","uid":"uid-db"},"spec":{"volumes":[
        {"name":"data","persistentVolumeClaim":{"claimName":"data-db"}},
        {"name":"log","persistentVolumeClaim":{"claimName":"log-db"}},
        {"name":"new","persistentVolumeClaim":{"claimName":"new-db"}},
        {"name":"tmp","ephemeral":{"volumeClaimTemplate":{"spec":{}}}},
        {"name":"db","emptyDir":{}}]}}"#;
    let claim = |namespace: &str, name: &str, volume: &str| {
        format!(
            r#"{{"kind":"PersistentVolumeClaim","metadata":{{"name":"{name}","namespace":"{namespace}"}},
            "spec":{{"resources":{{"requests":{{"storage":"1Gi"}}}},"volumeName":{volume}}}}}"#
        )
    };
    let claims = [
        claim("n", "data-db", r#""pvc-1""#),
        claim("n", "log-db", r#""pvc-2""#),
        claim("other", "new-db", r#""pvc-3""#),
        claim("n", "new-db", "null"),
        claim("n", "db-tmp", r#""pvc-4""#),
        claim("n", "db-db", r#""pvc-5""#),
    ];
    let mut reader = Reader::default();
    let mut said = |items: &str| {
        let text = format!(r#"{{"kind":"List","items":[{items}]}}"#);
        let parsed = reader.read(&text, |_| true).unwrap();
        assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
        parsed.pods[0].clone()
    };
    let bound = |pod: &Pod| {
        let volumes = pod.spec.volumes.iter().map(|it| it.bound.as_ref());
        let volumes = volumes.map(|it| it.map_or("-", |it| it.as_str()).to_owned());
        volumes.collect::<Vec<_>>().join(" ")
    };
    let all = format!("{pod},{}", claims.join(","));
    let first = said(&all);
    assert_eq!(bound(&first), "pvc-1 pvc-2 - pvc-4 -");
    assert!(Arc::ptr_eq(&first, &said(&all)));
    let second = said(&format!("{},{pod}", claims[1]));
    assert_eq!(bound(&second), "- pvc-2 - - -");
    assert_eq!(bound(&said(pod)), "- - - - -");
}

#[test]
fn volumes_that_a_container_has_as_devices_are_known() {
    let parsed = with(
        r#""volumes":[
        {"name":"data","persistentVolumeClaim":{"claimName":"a"}},
        {"name":"raw","persistentVolumeClaim":{"claimName":"b"}},
        {"name":"early","ephemeral":{"volumeClaimTemplate":{"spec":{}}}},
        {"name":"tmp","emptyDir":{}}],
        "containers":[
        {"name":"x","volumeMounts":[{"name":"data","mountPath":"/a"}]},
        {"name":"y","volumeDevices":[{"name":"raw","devicePath":"/dev/b"}]}],
        "initContainers":[
        {"name":"z","volumeDevices":[{"name":"early","devicePath":"/dev/c"}]}]"#,
    );
    let volumes = parsed.pods[0].spec.volumes.iter();
    let devices = volumes.filter(|it| it.is_device).map(|it| it.name.as_str());
    assert_eq!(devices.collect::<Vec<_>>(), ["raw", "early"]);
}

#[test]
fn an_amount_that_is_none_costs_its_pod_and_is_named() {
    for (resource, amount, reason) in [
        (
            "memory",
            r#""64MiB""#,
            r#""64MiB" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei"#,
        ),
        ("cpu", "-1", "amount -1 is outside 0 to 9223372036854775807"),
        (
            "kubernetes.io/batch-cpu",
            "[]",
            r#""[]" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei"#,
        ),
        (
            "kubernetes.io/mid-memory",
            "\"-1Mi\"",
            "amount -1048576 is outside 0 to 9223372036854775807",
        ),
    ] {
        let parsed = with(&format!(
            r#""containers":[{{"name":"x","resources":{{"requests":{{"{resource}":{amount}}}}}}}]"#
        ));
        assert!(parsed.pods.is_empty());
        assert_eq!(issues(&parsed), [format!("?/a is left out: {reason}")]);
        let problem = parsed.issues.iter().next().unwrap().problem.to_string();
        assert_eq!(
            problem,
            format!(r#"{resource} of container "x" is no amount"#)
        );
    }
}

#[test]
fn labels_and_annotations_that_nobody_wants_are_not_kept() {
    let parsed = Reader::default().read(KUBELETS, |key| key == "c").unwrap();
    assert!(parsed.pods[0].labels.is_empty());
    assert_eq!(parsed.pods[0].annotations.len(), 1);
}

#[test]
fn what_kubectl_prints_is_read_in_each_form() {
    let pod = |name: &str| {
        format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  uid: uid-{name}\n")
    };
    let json = r#"{"kind":"Pod","metadata":{"name":"a","uid":"uid-a"}}"#;
    let listed = pod("a").replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {listed}\n");
    for (text, expected) in [
        (pod("a"), vec!["a"]),
        (
            format!("---\n{}---\n{}", pod("a"), pod("b")),
            vec!["a", "b"],
        ),
        (list, vec!["a"]),
        (json.to_owned(), vec!["a"]),
        (format!(" \n{json}\n"), vec!["a"]),
        (r#"{"kind":"List","items":[]}"#.to_owned(), vec![]),
        (r#"{"kind":"PodList","items":null}"#.to_owned(), vec![]),
    ] {
        let parsed = read(&text);
        assert_eq!(names(&parsed), expected, "{text}");
        assert!(parsed.issues.is_empty(), "{text}");
        assert!(parsed.pods.iter().all(|pod| pod.namespace == "default"));
    }
}

#[test]
fn a_mirror_pod_has_the_uid_that_the_runtime_knows() {
    let pod = |annotations: &str| {
        format!(r#"{{"metadata":{{"name":"a","uid":"uid-1","annotations":{{{annotations}}}}}}}"#)
    };
    let hash = r#""kubernetes.io/config.hash":"hash-1""#;
    let mirror = r#""kubernetes.io/config.mirror":"hash-1""#;
    for (annotations, uid) in [
        (format!("{hash},{mirror}"), "hash-1"),
        // Of a pod that is no mirror its author may say that.
        (hash.to_owned(), "uid-1"),
        (mirror.to_owned(), "uid-1"),
    ] {
        let parsed = read(&pod(&annotations));
        assert_eq!(parsed.pods[0].uid.as_str(), uid, "{annotations}");
    }
}

#[test]
fn a_mirror_pod_shuts_out_no_pod_whose_uid_it_says() {
    let parsed = read(
        r#"{"kind":"List","items":[
        {"metadata":{"name":"made-up","namespace":"n","uid":"uid-m","annotations":{
            "kubernetes.io/config.mirror":"uid-a","kubernetes.io/config.hash":"uid-a"}}},
        {"metadata":{"name":"a","namespace":"other","uid":"uid-a"}},
        {"metadata":{"name":"a","namespace":"n","uid":"uid-a"}}]}"#,
    );
    assert_eq!(names(&parsed), ["made-up", "a", "a"]);
    assert!(parsed.pods.iter().all(|pod| pod.uid.as_str() == "uid-a"));
    assert!(parsed.issues.is_empty());
}

#[test]
fn what_a_parser_repeats_of_a_text_is_cut() {
    let long = "9".repeat(4_000_000);
    for text in [
        format!(r#"{{"metadata":{{"name":"a","uid":"uid-a","labels":"{long}"}}}}"#),
        format!("metadata: {{name: a, uid: uid-a, labels: x{long}}}"),
    ] {
        let parsed = read(&text);
        let issue = parsed.issues.iter().next().unwrap();
        let said = issue.problem.source().unwrap().to_string();
        assert!(said.len() < 1_100, "{} bytes", said.len());
    }
    let error = Reader::default().read(&format!("k{long}: 1\nk{long}: 2"), |_| true);
    let said = error.unwrap_err().source().unwrap().to_string();
    assert!(said.len() < 1_100, "{} bytes", said.len());
}

#[test]
fn a_bad_pod_is_named_and_costs_no_other() {
    let parsed = read(
        r#"{"kind":"List","items":[
        {"metadata":{"name":"a","namespace":"n","uid":"uid-a"}},
        {"metadata":{"name":"b","namespace":"n","uid":"uid-b","labels":{"x":true}}},
        {"metadata":{"name":"c","namespace":"n"}},
        {"metadata":{"name":"d","namespace":"n","uid":"../d"}},
        {"metadata":{"name":"a","namespace":"n","uid":"uid-a","labels":{}}},
        {"kind":"Node","metadata":{"name":"f"}},
        {"metadata":{"uid":"uid-g"}},
        7,
        {"metadata":{"name":"z","namespace":"n","uid":"uid-z"}}]}"#,
    );
    assert_eq!(names(&parsed), ["a", "z"]);
    let expected = [
        "n/b is left out: invalid type: boolean `true`, expected a string",
        "n/c is left out: it has no UID that a pod can have",
        "n/d is left out: it has no UID that a pod can have",
        "n/a is left out: another one before it has the same UID and name",
        r#"?/f is left out: kind is "Node", not Pod"#,
        "?/? is left out: missing field `name`",
        "?/? is left out: invalid type: integer `7`, expected struct PodText",
    ];
    assert_eq!(issues(&parsed), expected);
}

#[test]
fn of_many_bad_pods_all_are_counted_and_a_hundred_named() {
    let bad: String = (1..=150)
        .map(|number| format!(r#"{{"metadata":{{"name":"bad-{number}"}}}},"#))
        .collect();
    let good = r#"{"metadata":{"name":"good","uid":"uid-1"}}"#;
    let parsed = read(&format!(r#"{{"kind":"List","items":[{bad}{good}]}}"#));
    assert_eq!(names(&parsed), ["good"]);
    assert_eq!((parsed.issues.count(), parsed.issues.more()), (150, 50));
    let last = parsed.issues.iter().last().unwrap();
    assert_eq!(last.pod, "?/bad-100");
}

const NO_JSON: &str = "text begins with a brace, and is no JSON as `kubectl get -o json` and the kubelet's \
                       /pods print it";
const NO_YAML: &str = "text cannot be read as a YAML stream of objects";

#[test]
fn what_is_said_in_place_of_pods_is_an_error() {
    let refusal = |text: &str| {
        let error = Reader::default().read(text, |_| true).map(|_| ());
        let error = error.unwrap_err();
        let source = error.source().map(|issue| format!(": {issue}"));
        format!("{error}{}", source.unwrap_or_default())
    };
    let other = |document: u32, kind: &str| {
        format!("document {document} is of kind {kind:?}, and no pod, claim or List of such")
    };
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"Unauthorized","reason":"Unauthorized","code":401}"#;
    let answered =
        "a Status is in it, which an API server answers instead of pods: \"Unauthorized\"";
    let pod = r#"{"kind":"Pod","metadata":{"name":"a","uid":"uid-a"}}"#;
    for (text, expected) in [
        (status.to_owned(), answered.to_owned()),
        (format!("{pod}{status}"), answered.to_owned()),
        (
            format!(r#"{{"kind":"List","items":[{pod},{status}]}}"#),
            answered.to_owned(),
        ),
        (r#"{"error":"unauthorized"}"#.to_owned(), other(1, "")),
        (
            format!(r#"{pod}{{"kind":"Node","metadata":{{"name":"n"}}}}"#),
            other(2, "Node"),
        ),
        (
            "Error from server (NotFound): pods \"a\" not found\n".to_owned(),
            other(1, ""),
        ),
        // Of what kubectl prints, the beginning.
        (
            "apiVersion: v1\nitems:\n- metadata: {name: a, uid: uid-a}\n".to_owned(),
            other(1, ""),
        ),
        (r#"{"kind":"List"}"#.to_owned(), other(1, "List")),
        (
            r#"{"kind":"NodeList","items":[]}"#.to_owned(),
            other(1, "NodeList"),
        ),
        (
            r#"{"kind":"List","items":[{"kind":"Node","metadata":{"name":"n"}},{}]}"#.to_owned(),
            "nothing in its lists is a pod or a claim: ?/n is left out".to_owned(),
        ),
    ] {
        assert_eq!(refusal(&text), expected, "{text}");
    }
}

#[test]
fn of_what_is_refused_nothing_is_forgotten() {
    let mut reader = Reader::default();
    let before = reader.read(KUBELETS, |_| true).unwrap().pods;
    reader.read(r#"{"kind":"Status"}"#, |_| true).unwrap_err();
    let after = reader.read(KUBELETS, |_| true).unwrap().pods;
    assert!(Arc::ptr_eq(&before[0], &after[0]));
}

#[test]
fn a_text_has_as_many_objects_as_kubectl_can_print_in_its_length() {
    let read = |text: &str| {
        Reader::default()
            .read(text, |_| true)
            .map(|parsed| parsed.issues.count())
    };
    let pod = r#"{"metadata":{"name":"a"}}"#;
    let json = |count: usize| {
        format!(
            r#"{{"items":[{pod}{}],"kind":"List"}}"#,
            format!(",{pod}").repeat(count - 1)
        )
    };
    assert_eq!(read(&json(100_000)).unwrap(), 100_000);
    let too_many = "text has more than 100000 objects";
    assert_eq!(read(&json(100_001)).unwrap_err().to_string(), too_many);
    let stream = pod.repeat(100_001);
    assert_eq!(read(&stream).unwrap_err().to_string(), too_many);
    let yaml = |count| {
        format!(
            "items:\n{}kind: List\n",
            "- metadata: {name: a}\n".repeat(count)
        )
    };
    assert_eq!(read(&yaml(100_000)).unwrap(), 100_000);
    let error = read(&yaml(100_001)).unwrap_err();
    let reason = error.source().unwrap().to_string();
    assert!(reason.starts_with(too_many), "{reason}");
}

#[test]
fn a_text_of_which_nothing_can_be_read_is_an_error() {
    for (text, error) in [
        ("", "text holds no document"),
        ("# nothing yet\n", "text holds no document"),
        ("{", NO_JSON),
        (r#"{"kind":"Pod"} x"#, NO_JSON),
        // What YAML is besides.
        ("{kind: List, items: []}", NO_JSON),
        (r#"{"kind":"List","items":7}"#, "document 1 is no object"),
        ("a: [", NO_YAML),
        ("- a\n", NO_YAML),
        ("<html><body>502 Bad Gateway</body></html>", NO_YAML),
        ("kind: List\nitems: 7\n", NO_YAML),
    ] {
        let refused = Reader::default()
            .read(text, |_| true)
            .map(|_| ())
            .unwrap_err();
        assert_eq!(refused.to_string(), error, "{text:?}");
    }
    let long = " ".repeat(MAX_LENGTH + 1);
    let refused = Reader::default()
        .read(&long, |_| true)
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, PodsError::TooLong { length: 67_108_865 }));
}

#[test]
fn a_pod_that_is_as_it_was_is_not_read_again() {
    let mut reader = Reader::default();
    let before = reader.read(KUBELETS, |_| true).unwrap().pods;
    // A kubelet answers in another order each time.
    let text = KUBELETS.replace("\"uid-2\"", "\"uid-3\"");
    let after = reader.read(&text, |_| true).unwrap().pods;
    assert!(Arc::ptr_eq(&before[0], &after[0]));
    assert_eq!(after[1].uid.as_str(), "uid-3");
    assert!(!Arc::ptr_eq(&before[1], &after[1]));
}
