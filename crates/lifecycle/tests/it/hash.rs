//! Values that upstream's own function gave.

use rubelet_lifecycle::hash::{hash_text, name_and_image_hash};

#[test]
fn the_hash_is_upstreams() {
    let check = |name: &str, image: &str, expected: &str| {
        assert_eq!(
            hash_text(name_and_image_hash(name, image)),
            expected,
            "{name} {image}"
        );
    };
    check("foo", "bar", "11a6d6d6");
    check("a", "", "33f2e30");
    check("", "", "edd67cc4");
    check("a", "registry.example.com:5000/x/y:v1@sha256:abc", "76381dd8");
    check("c", "nginx:1.27", "7549f4e");
    // What JSON escapes, and what only Go's JSON escapes.
    check("<a>&b", "x\u{2028}y\u{2029}", "826159df");
    check("tab\t", "nl\n\r\"\\", "3a2aac33");
    check("\u{1}\u{8}\u{c}\u{1f}\u{7f}", "é😀", "99e12d06");
    check("test_container", "foo/image:v1", "8e45cbd0");
}

#[test]
fn name_and_image_both_count() {
    let hash = name_and_image_hash("a", "b");
    assert_ne!(hash, name_and_image_hash("b", "a"));
    assert_ne!(hash, name_and_image_hash("a", "b:1"));
}
