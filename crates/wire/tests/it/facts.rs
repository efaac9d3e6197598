//! Turns a compiled protobuf file into sorted lines of wire facts, so that two files can be compared without their prose.
//!
//! Shared by path with the end-to-end test that reads upstream's own file. It must not know where a file comes from.

use std::collections::BTreeSet;

use protox::prost_reflect::{
    Cardinality, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor,
};

/// One line per enum value, message, field and method, sorted, without the package's name.
pub(crate) fn facts(file: &FileDescriptor) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for service in file.services() {
        for method in service.methods() {
            let stream = |is: bool| if is { "stream " } else { "" };
            lines.insert(format!(
                "method {}.{} = {}{} -> {}{}",
                service.name(),
                method.name(),
                stream(method.is_client_streaming()),
                method.input().name(),
                stream(method.is_server_streaming()),
                method.output().name(),
            ));
        }
    }
    for kind in file.enums() {
        enum_facts(&kind, &mut lines);
    }
    for message in file.messages() {
        message_facts(&message, &mut lines);
    }
    lines.into_iter().collect()
}

fn local(full_name: &str) -> &str {
    full_name.strip_prefix("runtime.v1.").unwrap_or(full_name)
}

fn enum_facts(kind: &EnumDescriptor, lines: &mut BTreeSet<String>) {
    for value in kind.values() {
        lines.insert(format!(
            "enum {}.{} = {}",
            local(kind.full_name()),
            value.name(),
            value.number()
        ));
    }
}

fn message_facts(message: &MessageDescriptor, lines: &mut BTreeSet<String>) {
    let name = local(message.full_name());
    lines.insert(format!("message {name}"));
    for kind in message.child_enums() {
        enum_facts(&kind, lines);
    }
    for child in message.child_messages().filter(|child| !child.is_map_entry()) {
        message_facts(&child, lines);
    }
    for field in message.fields() {
        lines.insert(format!(
            "field {name}.{} = {} {}{}{}",
            field.name(),
            field.number(),
            field_type(&field),
            option(&field, "deprecated"),
            option(&field, "debug_redact"),
        ));
    }
}

fn field_type(field: &FieldDescriptor) -> String {
    let oneof = match field.containing_oneof() {
        Some(oneof) => format!("oneof {} ", oneof.name()),
        None => String::new(),
    };
    if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
        let part = |part: FieldDescriptor| kind_name(&part.kind());
        return format!(
            "{oneof}map<{}, {}>",
            part(entry.map_entry_key_field()),
            part(entry.map_entry_value_field())
        );
    }
    let cardinality = match field.cardinality() {
        Cardinality::Optional => "",
        Cardinality::Required => "required ",
        Cardinality::Repeated => "repeated ",
    };
    format!("{oneof}{cardinality}{}", kind_name(&field.kind()))
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => local(message.full_name()).to_owned(),
        Kind::Enum(kind) => local(kind.full_name()).to_owned(),
        scalar => format!("{scalar:?}"),
    }
}

fn option(field: &FieldDescriptor, name: &str) -> String {
    let set = field
        .options()
        .get_field_by_name(name)
        .and_then(|value| value.as_bool())
        .unwrap_or(false);
    if set { format!(" {name}") } else { String::new() }
}
