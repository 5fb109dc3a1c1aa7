use super::*;

/// A creation as a runtime sends it, by hand from the encoding of protobuf: fields that are not
/// looked at (arguments, environment, numbers of devices) among those that are.
const CREATE: &[u8] = b"\
    \x0a\x34\
        \x0a\x01p\
        \x12\x03pod\
        \x1a\x03uid\
        \x22\x02ns\
        \x2a\x06\x0a\x01k\x12\x01v\
        \x32\x06\x0a\x01a\x12\x01w\
        \x3a\x04kata\
        \x42\x06\x1a\x04/pod\
        \x48\x07\
        \x52\x01x\
    \x12\x45\
        \x0a\x01c\
        \x12\x01p\
        \x1a\x04name\
        \x20\x01\
        \x3a\x02sh\
        \x42\x03A=B\
        \x5a\x2a\
            \x12\x08\x0a\x01/\x12\x01c\x18\x05\
            \x1a\x14\
                \x0a\x04\x0a\x02\x08\x05\
                \x12\x0c\x0a\x03\x08\x80\x08\x12\x00\x32\x030-1\
            \x22\x02\x08\x64\
            \x2a\x04/a:b\
        \x60\x09";

fn pod() -> PodSandbox {
    let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    PodSandbox {
        id: "p".to_owned(),
        name: "pod".to_owned(),
        uid: "uid".to_owned(),
        namespace: "ns".to_owned(),
        labels: map("k", "v"),
        annotations: map("a", "w"),
        runtime_handler: "kata".to_owned(),
        linux: Some(LinuxPodSandbox {
            cgroup_parent: "/pod".to_owned(),
            ..LinuxPodSandbox::default()
        }),
        pid: 7,
    }
}

fn container() -> Container {
    Container {
        id: "c".to_owned(),
        pod_sandbox_id: "p".to_owned(),
        name: "name".to_owned(),
        state: ContainerState::ContainerCreated.into(),
        linux: Some(LinuxContainer {
            devices: vec![LinuxDevice {
                path: "/".to_owned(),
                ..LinuxDevice::default()
            }],
            resources: Some(LinuxResources {
                memory: Some(LinuxMemory {
                    limit: Some(OptionalInt64 { value: 5 }),
                    swap: None,
                }),
                cpu: Some(LinuxCpu {
                    shares: Some(OptionalUInt64 { value: 1_024 }),
                    // There, and zero.
                    quota: Some(OptionalInt64 { value: 0 }),
                    cpus: "0-1".to_owned(),
                    ..LinuxCpu::default()
                }),
                ..LinuxResources::default()
            }),
            oom_score_adj: Some(OptionalInt { value: 100 }),
            cgroups_path: "/a:b".to_owned(),
        }),
        pid: 9,
        ..Container::default()
    }
}

#[test]
fn a_creation_is_read_past_what_is_not_looked_at() {
    let read = CreateContainerRequest::read_keeping(CREATE, |_| true).unwrap();
    assert_eq!((read.pod, read.container), (Some(pod()), Some(container())));
}

#[test]
fn labels_and_annotations_that_nobody_asks_for_are_left_out() {
    let read = CreateContainerRequest::read_keeping(CREATE, |key| key == b"a").unwrap();
    let pod = PodSandbox {
        labels: Default::default(),
        ..pod()
    };
    assert_eq!(read.pod, Some(pod));
}

#[test]
fn parts_of_a_synchronisation_have_all_pods_and_containers_of_theirs() {
    // Two pods, a container between them, and more to come.
    let message = b"\x0a\x03\x0a\x01p\x12\x06\x0a\x01c\x12\x01p\x0a\x03\x0a\x01q\x18\x01";
    let read = SynchronizeRequest::read_keeping(message, |_| true).unwrap();
    let pods: Vec<_> = read.pods.iter().map(|pod| &*pod.id).collect();
    let containers: Vec<_> = read.containers.iter().map(|it| &*it.id).collect();
    assert_eq!(
        (pods, containers, read.more),
        (vec!["p", "q"], vec!["c"], true)
    );
}

#[test]
fn an_event_says_what_it_is_and_of_what() {
    // Event 6, pod "p", container "c".
    let message = b"\x08\x06\x12\x03\x0a\x01p\x1a\x03\x0a\x01c";
    let read = StateChangeEvent::read_keeping(message, |_| true).unwrap();
    assert_eq!(read.event(), Event::StartContainer);
    assert_eq!(read.pod.unwrap().id, "p");
    assert_eq!(read.container.unwrap().id, "c");

    // The same as its own request, and that of a pod, which has no container.
    let read = EventRequest::read_keeping(b"\x0a\x03\x0a\x01p\x12\x03\x0a\x01c", |_| true).unwrap();
    assert_eq!(read.container.unwrap().id, "c");
    let read = EventRequest::read_keeping(b"\x0a\x03\x0a\x01p", |_| true).unwrap();
    assert_eq!(
        (read.pod.unwrap().id, read.container),
        ("p".to_owned(), None)
    );
}

#[test]
fn an_update_has_what_the_kubelet_asks_for() {
    // container { id: "c" } linux_resources { memory { swap { 8 } } unified { "k": "v" } unified {
    // "memory.low": "1" } }
    let message = b"\x12\x03\x0a\x01c\x1a\x1f\x0a\x04\x1a\x02\x08\x08\x32\x06\x0a\x01k\x12\x01v\x32\x0f\x0a\x0amemory.low\x12\x011";
    let read = UpdateContainerRequest::read_keeping(message, |_| false).unwrap();
    let resources = read.linux_resources.unwrap();
    let swap = resources.memory.unwrap().swap;
    assert_eq!(swap, Some(OptionalInt64 { value: 8 }));
    // These are settings and no annotations: nobody is asked which to keep.
    let named: Vec<_> = resources.unified.into_iter().collect();
    assert_eq!(named, [("memory.low".to_owned(), "1".to_owned())]);
}

#[test]
fn what_is_no_message_is_none() {
    assert_eq!(ConfigureRequest::read(b"\x0a\x05"), None);
    let cut = &CREATE[..CREATE.len() - 1];
    assert_eq!(CreateContainerRequest::read_keeping(cut, |_| true), None);
}

#[test]
fn configuration_tells_the_runtime_and_its_limits() {
    let message = b"\x12\x0acontainerd\x1a\x06v2.3.0\x20\x88\x27\x28\xd0\x0f\x32\x07v0.12.0";
    let expected = ConfigureRequest {
        config: String::new(),
        runtime_name: "containerd".to_owned(),
        runtime_version: "v2.3.0".to_owned(),
        registration_timeout: 5_000,
        request_timeout: 2_000,
        nri_version: "v0.12.0".to_owned(),
    };
    assert_eq!(ConfigureRequest::read(message), Some(expected));
}

#[test]
fn registration_is_name_index_and_version() {
    let request = RegisterPluginRequest {
        plugin_name: "koord".to_owned(),
        plugin_idx: "05".to_owned(),
        nri_version: "0.12".to_owned(),
    };
    assert_eq!(request.to_bytes(), b"\x0a\x05koord\x12\x0205\x1a\x040.12");
}

#[test]
fn configuration_is_answered_by_the_mask_in_field_two() {
    let response = ConfigureResponse { events: 0x07ff };
    assert_eq!(response.to_bytes(), b"\x10\xff\x0f");
}

#[test]
fn an_adjustment_says_zero_where_zero_is_meant() {
    let adjust = ContainerAdjustment {
        annotations: [("a".to_owned(), "b".to_owned())].into(),
        mounts: vec![Mount {
            destination: "/a".to_owned(),
            r#type: "bind".to_owned(),
            source: "/a".to_owned(),
            options: vec!["rbind".to_owned()],
        }],
        env: vec![KeyValue {
            key: "K".to_owned(),
            value: String::new(),
        }],
        linux: Some(LinuxContainerAdjustment {
            resources: Some(LinuxResources {
                cpu: Some(LinuxCpu {
                    shares: Some(OptionalUInt64 { value: 2 }),
                    quota: Some(OptionalInt64 { value: -1 }),
                    period: Some(OptionalUInt64 { value: 0 }),
                    ..LinuxCpu::default()
                }),
                unified: [("cpu.idle".to_owned(), "1".to_owned())].into(),
                ..LinuxResources::default()
            }),
            oom_score_adj: Some(OptionalInt { value: 0 }),
            devices: vec![LinuxDevice {
                path: "/d".to_owned(),
                r#type: "c".to_owned(),
                major: 231,
                minor: 0,
                file_mode: Some(OptionalFileMode { value: 0o666 }),
            }],
        }),
    };
    let response = CreateContainerResponse {
        adjust: Some(adjust),
        update: Vec::new(),
    };
    let expected = b"\
        \x0a\x5f\
            \x12\x06\x0a\x01a\x12\x01b\
            \x1a\x15\x0a\x02/a\x12\x04bind\x1a\x02/a\x22\x05rbind\
            \x22\x03\x0a\x01K\
            \x32\x39\
                \x0a\x0f\x0a\x02/d\x12\x01c\x18\xe7\x01\x2a\x03\x08\xb6\x03\
                \x12\x24\
                    \x12\x13\
                        \x0a\x02\x08\x02\
                        \x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\
                        \x1a\x00\
                    \x32\x0d\x0a\x08cpu.idle\x12\x011\
                \x22\x00";
    assert_eq!(response.to_bytes(), expected);
}

#[test]
fn of_an_environment_nothing_is_read_but_what_is_added_to() {
    let env = ["SECRET=1", "LD_PRELOAD=/a.so", "LD_PRELOADED=1"].map(str::to_owned);
    let request = CreateContainerRequest {
        container: Some(Container {
            env: env.into(),
            ..Container::default()
        }),
        ..CreateContainerRequest::default()
    };
    let read = CreateContainerRequest::read_keeping(&request.encode_to_vec(), |_| false);
    let container = read.and_then(|read| read.container).unwrap();
    assert_eq!(container.env, ["LD_PRELOAD=/a.so"]);
}

#[test]
fn an_update_names_its_container_and_what_changes() {
    let resources = LinuxResources {
        cpu: Some(LinuxCpu {
            cpus: "0-3".to_owned(),
            ..LinuxCpu::default()
        }),
        memory: Some(LinuxMemory {
            limit: Some(OptionalInt64 { value: 300 }),
            swap: None,
        }),
        ..LinuxResources::default()
    };
    let update = vec![ContainerUpdate::new("c", resources)];
    let expected = b"\
        \x0a\x15\
            \x0a\x01c\
            \x12\x10\
                \x0a\x0e\
                    \x0a\x05\x0a\x03\x08\xac\x02\
                    \x12\x05\x32\x030-3";
    let response = UpdateContainerResponse { update };
    assert_eq!(response.to_bytes(), expected);
}

#[test]
fn every_part_of_a_synchronisation_is_answered_with_its_own_more() {
    let part = SynchronizeResponse {
        update: Vec::new(),
        more: true,
    };
    assert_eq!(part.to_bytes(), b"\x10\x01");
    assert_eq!(SynchronizeResponse::default().to_bytes(), b"");
}

#[test]
fn resources_without_a_value_are_empty_in_whatever_shape() {
    assert!(LinuxResources::default().is_empty());
    let hollow = LinuxResources {
        memory: Some(LinuxMemory::default()),
        cpu: Some(LinuxCpu::default()),
        ..LinuxResources::default()
    };
    assert!(hollow.is_empty());
    let mut zero = hollow.clone();
    zero.cpu.as_mut().unwrap().quota = Some(OptionalInt64 { value: 0 });
    assert!(!zero.is_empty());
    let file = LinuxResources {
        unified: [("k".to_owned(), String::new())].into(),
        ..LinuxResources::default()
    };
    assert!(!file.is_empty());
    let class = LinuxResources {
        rdt_class: Some(OptionalString::default()),
        ..LinuxResources::default()
    };
    assert!(!class.is_empty());
}
