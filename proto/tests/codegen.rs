//! The code under `src/generated` is what `cri/runtime.proto` gives. After a change of the latter,
//! `UPDATE_GENERATED=1 cargo test -p koord-proto --test codegen` writes it anew.

use prost::Message;
use prost_types::FileDescriptorSet;
use std::{env, error::Error, fs, path::Path};

const MESSAGES: &str = "cri.rs";
const CLIENT: &str = "client_v1.rs";

#[test]
fn generated_code_is_that_of_the_proto_file() -> Result<(), Box<dyn Error>> {
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = compile(&room.join("cri"))?;
    let checked_in = room.join("src/generated");
    let update = env::var_os("UPDATE_GENERATED").is_some();

    let generated = [
        (MESSAGES, messages(descriptors.clone())?),
        (CLIENT, client(descriptors)?),
    ];
    for (file, fresh) in generated {
        let path = checked_in.join(file);
        if update {
            fs::copy(write_aside(&fresh)?.path(), &path)?;
        }
        let committed = fs::read_to_string(&path)?;
        assert!(
            committed == fresh,
            "{file} is not what cri/runtime.proto gives: run this test with UPDATE_GENERATED=1"
        );
    }
    Ok(())
}

fn write_aside(text: &str) -> Result<tempfile::NamedTempFile, Box<dyn Error>> {
    let mut file = tempfile::NamedTempFile::new()?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(file)
}

fn compile(directory: &Path) -> Result<FileDescriptorSet, Box<dyn Error>> {
    let set = protox::Compiler::new([directory])?
        .include_source_info(true)
        .open_file("runtime.proto")?
        .encode_file_descriptor_set();
    Ok(FileDescriptorSet::decode(&*set)?)
}

/// The messages alone.
fn messages(descriptors: FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let out = tempfile::tempdir()?;
    prost_build::Config::new()
        .out_dir(out.path())
        .compile_fds(descriptors)?;
    Ok(fs::read_to_string(out.path().join("runtime.v1.rs"))?)
}

/// The client of the service; its messages are those of `crate::cri`.
fn client(mut descriptors: FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    for file in &mut descriptors.file {
        file.message_type.clear();
        file.enum_type.clear();
        file.source_code_info = None;
    }
    let out = tempfile::tempdir()?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .extern_path(".runtime.v1", "crate::cri")
        .out_dir(out.path())
        .compile_fds(descriptors)?;
    Ok(fs::read_to_string(out.path().join("runtime.v1.rs"))?)
}
