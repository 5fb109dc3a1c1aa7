//! Walking over an NRI message and decoding it see the same.

use koord_proto::{
    cri::UNIFIED,
    nri::{
        Container, CreateContainerRequest, LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox,
        LinuxResources, OptionalInt64, OptionalString, OptionalUInt64, PodSandbox,
        SynchronizeRequest,
    },
};
use proptest::{collection, option, prelude::*, sample};
use prost::Message;
use std::collections::BTreeMap;

fn text() -> impl Strategy<Value = String> {
    "[a-c/é]{0,3}"
}

fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    collection::btree_map(text(), text(), 0..4)
}

/// By name what is asked for, of files that are looked at and of others.
fn files() -> impl Strategy<Value = BTreeMap<String, String>> {
    let name = prop_oneof![text(), sample::select(UNIFIED).prop_map(str::to_owned)];
    collection::btree_map(name, text(), 0..4)
}

fn keep_looked_at(resources: &mut LinuxResources) {
    resources
        .unified
        .retain(|file, _| UNIFIED.contains(&&**file));
}

fn keep_looked_at_of_pod(pod: &mut PodSandbox) {
    if let Some(linux) = &mut pod.linux {
        linux.pod_overhead.iter_mut().for_each(keep_looked_at);
        linux.pod_resources.iter_mut().for_each(keep_looked_at);
    }
}

fn keep_looked_at_of_container(container: &mut Container) {
    if let Some(linux) = &mut container.linux {
        linux.resources.iter_mut().for_each(keep_looked_at);
    }
}

prop_compose! {
    fn resources()(
        numbers in any::<[Option<i64>; 3]>(),
        shares in any::<Option<u64>>(),
        cpus in text(),
        rdt_class in option::of(text()),
        unified in files(),
    ) -> LinuxResources {
        let [limit, swap, quota] = numbers.map(|it| it.map(|value| OptionalInt64 { value }));
        LinuxResources {
            memory: Some(LinuxMemory { limit, swap }),
            cpu: Some(LinuxCpu {
                shares: shares.map(|value| OptionalUInt64 { value }),
                quota,
                cpus,
                ..LinuxCpu::default()
            }),
            rdt_class: rdt_class.map(|value| OptionalString { value }),
            unified,
            ..LinuxResources::default()
        }
    }
}

prop_compose! {
    fn pod()(
        id in text(),
        labels in map(),
        annotations in map(),
        pod_resources in option::of(resources()),
        pid in any::<u32>(),
    ) -> PodSandbox {
        let linux = Some(LinuxPodSandbox { pod_resources, ..LinuxPodSandbox::default() });
        PodSandbox { id, labels, annotations, linux, pid, ..PodSandbox::default() }
    }
}

prop_compose! {
    fn container()(
        id in text(),
        labels in map(),
        annotations in map(),
        resources in option::of(resources()),
        state in any::<i32>(),
    ) -> Container {
        let linux = Some(LinuxContainer { resources, ..LinuxContainer::default() });
        Container { id, labels, annotations, linux, state, ..Container::default() }
    }
}

proptest! {
    #[test]
    fn a_part_of_a_synchronisation_is_read_whole_but_for_entries_that_nobody_asks_for(
        pods in collection::vec(pod(), 0..4),
        containers in collection::vec(container(), 0..4),
        more in any::<bool>(),
    ) {
        let mut request = SynchronizeRequest { pods, containers, more };
        let message = request.encode_to_vec();
        request.pods.iter_mut().for_each(keep_looked_at_of_pod);
        request.containers.iter_mut().for_each(keep_looked_at_of_container);
        let all = SynchronizeRequest::read_keeping(&message, |_| true);
        prop_assert_eq!(all.as_ref(), Some(&request));

        let keep = |key: &str| key.starts_with('a');
        for pod in &mut request.pods {
            pod.labels.retain(|key, _| keep(key));
            pod.annotations.retain(|key, _| keep(key));
        }
        for container in &mut request.containers {
            container.labels.retain(|key, _| keep(key));
            container.annotations.retain(|key, _| keep(key));
        }
        let some = SynchronizeRequest::read_keeping(&message, |key| key.starts_with(b"a"));
        prop_assert_eq!(some, Some(request));
    }

    #[test]
    fn arbitrary_bytes_are_read_as_the_decoder_reads_them_or_not_at_all(
        message in collection::vec(any::<u8>(), 0..48),
    ) {
        if let Some(read) = CreateContainerRequest::read_keeping(&message, |_| true) {
            let mut decoded = CreateContainerRequest::decode(&*message).unwrap();
            decoded.pod.iter_mut().for_each(keep_looked_at_of_pod);
            decoded.container.iter_mut().for_each(keep_looked_at_of_container);
            prop_assert_eq!(decoded, read);
        }
    }
}
