//! proto3 JSON: messages as clients of the HTTP form write and read them.

use ag_core::name::FieldError;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions,
};
use serde_json::{Map, Value};

/// The descriptors of `agwp.v1`.
pub fn pool() -> &'static DescriptorPool {
    static POOL: std::sync::LazyLock<DescriptorPool> = std::sync::LazyLock::new(|| {
        DescriptorPool::decode(ag_proto::DESCRIPTOR_SET).expect("the generated descriptors are descriptors")
    });
    &POOL
}

/// The message of this name.
pub fn message(full_name: &str) -> Option<MessageDescriptor> {
    pool().get_message_by_name(full_name)
}

/// An encoded message as JSON: names in lowerCamelCase, 64-bit integers as strings, enums by name, defaults written,
/// absent messages left out.
pub fn to_json(descriptor: &MessageDescriptor, encoded: &[u8]) -> Result<Value, String> {
    let message = DynamicMessage::decode(descriptor.clone(), encoded).map_err(|error| error.to_string())?;
    let options = SerializeOptions::new().skip_default_fields(false);
    let mut value =
        message.serialize_with_options(serde_json::value::Serializer, &options).map_err(|error| error.to_string())?;
    drop_nulls(&mut value);
    Ok(value)
}

/// What is absent is left out.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The JSON object in a body. Nothing at all is an empty object.
pub fn parse_object(body: &[u8]) -> Result<Map<String, Value>, FieldError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value: Value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "body".to_owned() } else { path };
        FieldError::new(field, format!("must be JSON: {}", error.inner()))
    })?;
    deserializer.end().map_err(|error| FieldError::new("body", format!("must be one JSON value: {error}")))?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(FieldError::new("body", "must be a JSON object")),
    }
}

/// The names that a field may have, if it has names and `text` is none of them. The mapping itself would ignore it,
/// like a field that is not known, and something else be done than was asked for.
pub fn unknown_name(field: &FieldDescriptor, text: &str) -> Option<FieldError> {
    match field.kind() {
        Kind::Enum(known) if known.get_value_by_name(text).is_none() => {
            let names: Vec<_> = known.values().map(|value| value.name().to_owned()).collect();
            Some(FieldError::new(field.name(), format!("must be one of {}", names.join(", "))))
        }
        _ => None,
    }
}

/// Encodes the message that an object stands for. Fields that this release does not know are ignored.
pub fn encode(descriptor: &MessageDescriptor, object: Map<String, Value>) -> Result<Vec<u8>, FieldError> {
    for field in descriptor.fields() {
        let value = object.get(field.name()).or_else(|| object.get(field.json_name()));
        if let Some(error) = value.and_then(Value::as_str).and_then(|text| unknown_name(&field, text)) {
            return Err(error);
        }
    }
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(Value::Object(object), &mut track);
    match DynamicMessage::deserialize_with_options(descriptor.clone(), deserializer, &options) {
        Ok(message) => Ok(message.encode_to_vec()),
        Err(error) => {
            let path = track.path().to_string();
            let field = if path == "." { "body".to_owned() } else { path };
            Err(FieldError::new(field, format!("has the wrong type or form: {error}")))
        }
    }
}
