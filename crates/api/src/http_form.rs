//! The HTTP/JSON front: routes made from the `google.api.http` annotations of the protos.

use ag_core::name::FieldError;
use http::Method as Verb;
use percent_encoding::percent_decode_str;
use prost_reflect::{Cardinality, DynamicMessage, Kind, MessageDescriptor, Value as Reflected};
use serde_json::{Map, Value};

use crate::json;
use crate::method::Method;

/// One HTTP form of a method.
#[derive(Clone, Debug)]
pub struct Route {
    /// The HTTP method.
    pub verb: Verb,
    /// The path, as annotated.
    pub template: String,
    /// The method.
    pub method: Method,
    /// Its request.
    pub input: MessageDescriptor,
    /// Its answer.
    pub output: MessageDescriptor,
    /// Fields come from a JSON body; else from the query string.
    pub has_body: bool,
    /// What the annotation's comment says.
    pub segments: Vec<Segment>,
}

/// A part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Exactly this.
    Literal(String),
    /// A field, up to the next `/`, followed by this (`:verb`, or nothing).
    Field(String, String),
    /// A field that takes all the rest.
    Rest(String),
}

/// All routes.
pub fn routes() -> Vec<Route> {
    let pool = json::pool();
    let Some(http) = pool.get_extension_by_name("google.api.http") else { return Vec::new() };
    let mut routes = Vec::new();
    for service in pool.services() {
        for descriptor in service.methods() {
            let path = format!("/{}/{}", service.full_name(), descriptor.name());
            let Some(method) = Method::of_path(&path) else { continue };
            let options = descriptor.options();
            let Reflected::Message(rule) = options.get_extension(&http).into_owned() else { continue };
            let Some((verb, template)) = pattern(&rule) else { continue };
            let has_body = text(&rule, "body") == "*";
            let segments = parse_template(&template);
            let (input, output) = (descriptor.input(), descriptor.output());
            routes.push(Route { verb, template, method, input, output, has_body, segments });
        }
    }
    routes
}

fn pattern(rule: &DynamicMessage) -> Option<(Verb, String)> {
    let verbs = [
        ("get", Verb::GET),
        ("put", Verb::PUT),
        ("post", Verb::POST),
        ("delete", Verb::DELETE),
        ("patch", Verb::PATCH),
    ];
    verbs.into_iter().map(|(field, verb)| (verb, text(rule, field))).find(|(_, template)| !template.is_empty())
}

fn text(message: &DynamicMessage, field: &str) -> String {
    message.get_field_by_name(field).and_then(|value| value.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}

fn parse_template(template: &str) -> Vec<Segment> {
    let segment = |part: &str| match part.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        None => Segment::Literal(part.to_owned()),
        Some((field, suffix)) => match field.strip_suffix("=**") {
            Some(field) => Segment::Rest(field.to_owned()),
            None => Segment::Field(field.to_owned(), suffix.to_owned()),
        },
    };
    template.trim_start_matches('/').split('/').map(segment).collect()
}

impl Route {
    /// The fields that a path gives, percent-decoded; `None`: it is not this route's path.
    pub fn matches(&self, path: &str) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        let mut parts = path.trim_start_matches('/').split('/');
        for (position, segment) in self.segments.iter().enumerate() {
            match segment {
                Segment::Literal(literal) => _ = parts.next().filter(|part| part == literal)?,
                Segment::Field(field, suffix) => {
                    let value = parts.next()?.strip_suffix(suffix.as_str())?;
                    fields.push((field.clone(), decoded(value)?));
                }
                Segment::Rest(field) => {
                    let rest: Vec<_> = path.trim_start_matches('/').split('/').skip(position).collect();
                    if rest.is_empty() {
                        return None;
                    }
                    fields.push((field.clone(), decoded(&rest.join("/"))?));
                    return Some(fields);
                }
            }
        }
        parts.next().is_none().then_some(fields)
    }

    /// The encoded request of a path's fields, a query string and a body.
    pub fn request(&self, fields: Vec<(String, String)>, query: &str, body: &[u8]) -> Result<Vec<u8>, FieldError> {
        let mut object = if self.has_body { json::parse_object(body)? } else { self.query(query)? };
        for (field, value) in fields {
            object.remove(&field);
            if let Some(descriptor) = self.input.get_field_by_name(&field) {
                object.remove(descriptor.json_name());
            }
            object.insert(field, Value::String(value));
        }
        json::encode(&self.input, object)
    }

    /// A query string as an object. Parameters that are no field are ignored.
    fn query(&self, query: &str) -> Result<Map<String, Value>, FieldError> {
        let mut object = Map::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let malformed = || FieldError::new("query", "must be percent-encoded UTF-8");
            let name = decoded(&name.replace('+', " ")).ok_or_else(malformed)?;
            let value = decoded(&value.replace('+', " ")).ok_or_else(malformed)?;
            let field = self.input.get_field_by_name(&name).or_else(|| self.input.get_field_by_json_name(&name));
            let Some(field) = field else { continue };
            if let Some(error) = json::unknown_name(&field, &value) {
                return Err(error);
            }
            let value = match (field.kind(), value.as_str()) {
                (Kind::Bool, "true" | "") => Value::Bool(true),
                (Kind::Bool, "false") => Value::Bool(false),
                (Kind::Bool, _) => return Err(FieldError::new(name, "must be true or false")),
                _ => Value::String(value),
            };
            match (field.cardinality(), object.entry(field.name().to_owned()).or_insert(Value::Null)) {
                (Cardinality::Repeated, Value::Array(values)) => values.push(value),
                (Cardinality::Repeated, empty) => *empty = Value::Array(vec![value]),
                (_, slot @ Value::Null) => *slot = value,
                (_, _) => return Err(FieldError::new(name, "must be given once")),
            }
        }
        Ok(object)
    }
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: Method) -> Route {
        routes().into_iter().find(|route| route.method == method).unwrap()
    }

    #[test]
    fn every_method_has_an_http_form() {
        let routes = routes();
        for method in Method::ALL {
            assert!(routes.iter().any(|route| route.method == method), "{method:?}");
        }
    }

    #[test]
    fn paths_give_fields() {
        let heartbeat = route(Method::HeartbeatJob);
        assert_eq!(heartbeat.matches("/v1/jobs/j1:heartbeat"), Some(vec![("job_id".into(), "j1".into())]));
        assert_eq!(heartbeat.matches("/v1/jobs/j1"), None);
        assert_eq!(heartbeat.matches("/v1/jobs/a/b:heartbeat"), None);
        let queue = route(Method::GetQueue);
        assert_eq!(queue.matches("/v1/queues/a/b%2Fc"), Some(vec![("queue".into(), "a/b/c".into())]));
        assert_eq!(queue.matches("/v1/queues"), None);
        assert_eq!(route(Method::GetJob).matches("/v1/jobs/%ff"), None);
    }

    #[test]
    fn queries_are_typed_and_name_their_field() {
        let list = route(Method::ListJobs);
        let encode = |query: &str| list.request(Vec::new(), query, b"");
        assert!(encode("queue=a&label=x%3D1&label=y&pageSize=5&stale=true&state=READY&unknown=1").is_ok());
        for (query, field) in
            [("page_size=x", "page_size"), ("stale=7", "stale"), ("state=NONE", "state"), ("queue=a&queue=b", "queue")]
        {
            let error = encode(query).unwrap_err();
            assert!(error.field.contains(field), "{query}: {error}");
        }
    }
}
