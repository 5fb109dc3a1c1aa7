//! The code under `src/generated` is what the proto files give. After a change of one of them,
//! `UPDATE_GENERATED=1 cargo test -p koord-proto --test codegen` writes it anew.

use prost::Message;
use prost_types::FileDescriptorSet;
use std::{env, error::Error, fs, path::Path};

#[test]
fn generated_code_is_that_of_the_proto_files() -> Result<(), Box<dyn Error>> {
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cri = compile(&room.join("cri"), "runtime.proto")?;
    let nri = compile(&room.join("nri"), "nri.proto")?;
    let events = compile(&room.join("containerd"), "events.proto")?;
    let checked_in = room.join("src/generated");
    let update = env::var_os("UPDATE_GENERATED").is_some();

    let generated = [
        (
            "cri.rs",
            messages(cri.clone(), "runtime.v1.rs", &[], &["."])?,
        ),
        (
            "client_v1.rs",
            client(without_messages(cri), "runtime.v1.rs")?,
        ),
        (
            "containerd_events.rs",
            client(events, "containerd.services.events.v1.rs")?,
        ),
        // What is written has one order, so that it can be compared.
        (
            "nri.rs",
            messages(nri, "nri.pkg.api.v1alpha1.rs", &["."], &[])?,
        ),
    ];
    for (file, fresh) in generated {
        let path = checked_in.join(file);
        if update {
            fs::copy(write_aside(&fresh)?.path(), &path)?;
        }
        let committed = fs::read_to_string(&path)?;
        assert!(
            committed == fresh,
            "{file} is not what its proto file gives: run this test with UPDATE_GENERATED=1"
        );
    }
    Ok(())
}

fn write_aside(text: &str) -> Result<tempfile::NamedTempFile, Box<dyn Error>> {
    let mut file = tempfile::NamedTempFile::new()?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(file)
}

fn compile(directory: &Path, file: &str) -> Result<FileDescriptorSet, Box<dyn Error>> {
    let set = protox::Compiler::new([directory])?
        .include_source_info(true)
        .open_file(file)?
        .encode_file_descriptor_set();
    Ok(FileDescriptorSet::decode(&*set)?)
}

/// The messages alone; the maps of those that `ordered` names keep an order, and fields of bytes of those
/// that `shared` names are parts of what they were decoded from.
fn messages(
    descriptors: FileDescriptorSet,
    file: &str,
    ordered: &[&str],
    shared: &[&str],
) -> Result<String, Box<dyn Error>> {
    let out = tempfile::tempdir()?;
    prost_build::Config::new()
        .btree_map(ordered)
        .bytes(shared)
        .out_dir(out.path())
        .compile_fds(descriptors)?;
    Ok(fs::read_to_string(out.path().join(file))?)
}

/// The services alone; their messages are those of `crate::cri`.
fn without_messages(mut descriptors: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut descriptors.file {
        file.message_type.clear();
        file.enum_type.clear();
        file.source_code_info = None;
    }
    descriptors
}

/// The client of a service, with what messages there are.
fn client(descriptors: FileDescriptorSet, file: &str) -> Result<String, Box<dyn Error>> {
    let out = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .extern_path(".runtime.v1", "crate::cri")
        .out_dir(out.path())
        .compile_fds(descriptors)?;
    Ok(fs::read_to_string(out.path().join(file))?)
}
