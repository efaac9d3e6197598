//! Our file of wire facts holds exactly what the golden list says.

use protox::Compiler;
use protox::prost_reflect::FileDescriptor;

use crate::facts::facts;

const GOLDEN: &str = include_str!("../../../../testbed/goldens/cri-v1.txt");

fn our_file() -> FileDescriptor {
    let mut compiler =
        Compiler::new([concat!(env!("CARGO_MANIFEST_DIR"), "/proto")]).expect("the proto folder exists");
    compiler.open_file("cri/v1.proto").expect("our file compiles");
    compiler
        .descriptor_pool()
        .get_file_by_name("cri/v1.proto")
        .expect("our file is in the pool")
}

#[test]
fn our_file_says_what_the_golden_says() {
    let ours = facts(&our_file());
    let golden: Vec<&str> = GOLDEN.lines().collect();
    let extra: Vec<_> = ours
        .iter()
        .filter(|line| !golden.contains(&line.as_str()))
        .collect();
    let missing: Vec<_> = golden
        .iter()
        .filter(|line| !ours.iter().any(|own| own == *line))
        .collect();
    assert!(
        extra.is_empty() && missing.is_empty(),
        "only in our file: {extra:#?}\nonly in the golden: {missing:#?}"
    );
}

#[test]
fn the_golden_is_sorted_and_whole() {
    let lines: Vec<&str> = GOLDEN.lines().collect();
    assert!(lines.is_sorted());
    let count = |prefix: &str| lines.iter().filter(|line| line.starts_with(prefix)).count();
    assert_eq!(
        (count("method RuntimeService."), count("method ImageService.")),
        (37, 6)
    );
    assert_eq!((count("message "), count("field ")), (175, 478));
}

#[test]
fn a_changed_number_is_noticed() {
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/cri/v1.proto"))
        .expect("readable");
    let changed = source.replace("string image_ref = 20;", "string image_ref = 21;");
    assert_ne!(source, changed);
    let file = protox::file::File::from_source("changed.proto", &changed).expect("parses");
    let mut pool = protox::prost_reflect::DescriptorPool::new();
    pool.add_file_descriptor_proto(file.file_descriptor_proto().clone())
        .expect("links");
    let changed = facts(&pool.get_file_by_name("changed.proto").expect("in the pool"));
    assert!(changed.contains(&"field ImageSpec.image_ref = 21 string".to_owned()));
    assert!(
        !GOLDEN
            .lines()
            .any(|line| line == "field ImageSpec.image_ref = 21 string")
    );
}
