//! OpenAPI 3.1, from the same descriptors as the server.

use std::collections::BTreeMap;

use prost_reflect::{
    Cardinality, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, MethodDescriptor,
};
use serde_json::{Map, Value, json};

use crate::http_form::{self, Route, Segment};
use crate::json::pool;

/// The document, pretty-printed.
pub fn document() -> String {
    let mut schemas = BTreeMap::new();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in http_form::routes() {
        let operation = operation(&route, &mut schemas);
        let verb = route.verb.as_str().to_lowercase();
        paths.entry(path(&route)).or_default().insert(verb, operation);
    }
    let (status, error) = error_schemas();
    schemas.insert("Error".into(), status);
    schemas.insert("ErrorDetail".into(), error);
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ag",
            "version": ag_wire::version::RELEASE,
            "description": "Job claims that a stale worker cannot touch. Names are written in lowerCamelCase and read \
                in either form; 64-bit integers are strings; bytes are base64; unknown fields are ignored.",
        },
        "servers": [{ "url": "http://127.0.0.1:7400" }],
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
    });
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// `{queue=**}` → `{queue}`.
fn path(route: &Route) -> String {
    route.segments.iter().fold(String::new(), |path, segment| match segment {
        Segment::Literal(literal) => format!("{path}/{literal}"),
        Segment::Field(field, suffix) => format!("{path}/{{{field}}}{suffix}"),
        Segment::Rest(field) => format!("{path}/{{{field}}}"),
    })
}

fn operation(route: &Route, schemas: &mut BTreeMap<String, Value>) -> Value {
    let descriptor = method(route);
    let bound: Vec<&str> = route
        .segments
        .iter()
        .filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Field(field, _) | Segment::Rest(field) => Some(field.as_str()),
        })
        .collect();
    let mut parameters: Vec<Value> = Vec::new();
    for field in route.input.fields() {
        let in_path = bound.contains(&field.name());
        if !in_path && route.has_body {
            continue;
        }
        let name = if in_path { field.name().to_owned() } else { field.json_name().to_owned() };
        let place = if in_path { "path" } else { "query" };
        let mut parameter =
            json!({ "name": name, "in": place, "required": in_path, "schema": field_schema(&field, schemas) });
        if let Some(text) = comment(field.parent_message().parent_file(), field.path()) {
            parameter["description"] = text.into();
        }
        parameters.push(parameter);
    }
    let text = descriptor
        .as_ref()
        .and_then(|descriptor| comment(descriptor.parent_service().parent_file(), descriptor.path()));
    let mut operation = json!({
        "operationId": route.method.name(),
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "Done.",
                "headers": {
                    "ag-applied": {
                        "description": "`<term>/<index>`: where it was applied, or what a read reflects.",
                        "schema": { "type": "string" },
                    },
                },
                "content": { "application/json": { "schema": message_ref(&route.output, schemas) } },
            },
            "default": {
                "description": "Refused or failed.",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
            },
        },
    });
    if let Some(text) = text {
        operation["summary"] = text.split(". ").next().unwrap_or_default().trim_end_matches('.').into();
        operation["description"] = text.into();
    }
    if route.has_body {
        let name = message_ref(&route.input, schemas);
        operation["requestBody"] = json!({ "required": false, "content": { "application/json": { "schema": name } } });
    }
    operation
}

fn method(route: &Route) -> Option<MethodDescriptor> {
    let (service, name) = route.method.path().trim_start_matches('/').split_once('/')?;
    pool().get_service_by_name(service)?.methods().find(|method| method.name() == name)
}

fn message_ref(message: &MessageDescriptor, schemas: &mut BTreeMap<String, Value>) -> Value {
    let name = message.name().to_owned();
    if !schemas.contains_key(&name) {
        schemas.insert(name.clone(), Value::Null);
        let mut properties = Map::new();
        for field in message.fields() {
            let mut schema = field_schema(&field, schemas);
            if let Some(text) = comment(message.parent_file(), field.path()) {
                schema["description"] = text.into();
            }
            properties.insert(field.json_name().to_owned(), schema);
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        if let Some(text) = comment(message.parent_file(), message.path()) {
            schema["description"] = text.into();
        }
        schemas.insert(name.clone(), schema);
    }
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn field_schema(field: &FieldDescriptor, schemas: &mut BTreeMap<String, Value>) -> Value {
    if field.is_map() {
        return json!({ "type": "object", "additionalProperties": { "type": "string" } });
    }
    let one = kind_schema(&field.kind(), schemas);
    match field.cardinality() {
        Cardinality::Repeated => json!({ "type": "array", "items": one }),
        Cardinality::Optional | Cardinality::Required => one,
    }
}

fn kind_schema(kind: &Kind, schemas: &mut BTreeMap<String, Value>) -> Value {
    match kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::String => json!({ "type": "string" }),
        Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({ "type": "integer", "format": "int32" }),
        Kind::Uint32 | Kind::Fixed32 => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({ "type": "string", "format": "int64" }),
        Kind::Uint64 | Kind::Fixed64 => json!({ "type": "string", "format": "uint64" }),
        Kind::Double | Kind::Float => json!({ "type": "number" }),
        Kind::Enum(descriptor) => enum_schema(descriptor),
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Duration" => json!({ "type": "string", "pattern": "^-?[0-9]+(\\.[0-9]{1,9})?s$" }),
            "google.protobuf.Timestamp" => json!({ "type": "string", "format": "date-time" }),
            _ => message_ref(message, schemas),
        },
    }
}

fn enum_schema(descriptor: &EnumDescriptor) -> Value {
    let names: Vec<_> = descriptor.values().map(|value| value.name().to_owned()).collect();
    json!({ "type": "string", "enum": names })
}

fn error_schemas() -> (Value, Value) {
    let error = json!({
        "type": "object",
        "description": "A call that was refused or failed.",
        "properties": {
            "code": { "type": "integer", "description": "The gRPC code." },
            "status": { "type": "string", "description": "Its name, such as `FAILED_PRECONDITION`." },
            "message": { "type": "string", "description": "For people." },
            "details": { "type": "array", "items": { "$ref": "#/components/schemas/ErrorDetail" } },
        },
    });
    let detail = json!({
        "type": "object",
        "description": "Why, for programs.",
        "properties": {
            "reason": { "type": "string", "description": "Such as `CLAIM_LOST`." },
            "domain": { "type": "string", "description": "`agwp.v1`." },
            "metadata": { "type": "object", "additionalProperties": { "type": "string" } },
        },
    });
    (error, detail)
}

/// The comment above an element of a proto file, in one line.
fn comment(file: FileDescriptor, path: &[i32]) -> Option<String> {
    let info = file.file_descriptor_proto().source_code_info.clone()?;
    let location = info.location.into_iter().find(|location| location.path == path)?;
    let text = location.leading_comments?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(text).filter(|text| !text.is_empty())
}
