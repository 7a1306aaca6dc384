//! `docs/reference/openapi.yaml`, made from the routes of the admin API and the types of its requests and replies.

use std::{env, fs};

use admin::{Parameter, ROUTES, Route, Takes};
use regex::Regex;
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

const PAGE: &str = "docs/reference/openapi.yaml";

#[test]
fn the_openapi_document_is_made_from_routes_and_types() {
    let made = format!(
        "# Made from crates/operations/api and crates/operations/admin/src/routes.rs by\n\
         # TOLLGATE_WRITE_DOCS=1 cargo test --test docs\n{}",
        document()
    );
    if env::var_os("TOLLGATE_WRITE_DOCS").is_some() {
        fs::write(PAGE, &made).unwrap();
    }
    let is_same = fs::read_to_string(PAGE).unwrap() == made;
    assert!(is_same, "{PAGE}: TOLLGATE_WRITE_DOCS=1 cargo test --test docs rewrites it");
}

fn document() -> String {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|it| {
        it.definitions_path = "/components/schemas".into();
        it.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    let error = schema(&mut generator, SchemaGenerator::subschema_for::<api::Error>);
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if route.path.contains("{id}") {
            path["parameters"] =
                json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        path[route.method.as_str().to_lowercase()] = operation(route, &mut generator);
    }
    paths.insert("/schema.json".to_owned(), schema_of_rules());
    let mut schemas = Value::Object(generator.take_definitions(true));
    tidy(&mut schemas);
    let failure = |description: &str| json!({"description": description, "content": {"application/json": {"schema": error}}});
    let mut unauthorized = failure("A token of ADMIN_TOKEN_FILE is required.");
    unauthorized["headers"] = json!({"WWW-Authenticate": {"schema": {"type": "string"}}});
    let parts = [
        json!({"openapi": "3.1.0"}),
        json!({"info": {
            "title": "Tollgate admin API",
            "version": "v1",
            "description": "The state of a running service, and changes to it. See docs/reference/admin.md.\n\nErrors are JSON with one member, \
                `error`: the value seen and what is expected.\n",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        }}),
        json!({"servers": [{"url": "http://127.0.0.1:6071", "description": "The default value of ADMIN_ADDR"}]}),
        json!({"security": [{}, {"token": []}]}),
        json!({"paths": paths}),
        json!({"components": {
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of ADMIN_TOKEN_FILE; required if that is set.",
            }},
            "responses": {
                "Error": failure("The call is invalid or not allowed, for the reason in the message."),
                "Unauthorized": unauthorized,
            },
            "schemas": schemas,
        }}),
    ];
    parts.iter().flat_map(|part| part.as_object().unwrap()).map(|(name, part)| block(name, part, 0)).collect()
}

/// The columns that a member may take on one line.
const WIDTH: usize = 120;

/// A member as YAML: on one line if it fits, else its members on lines of their own.
fn block(name: &str, value: &Value, indent: usize) -> String {
    let start = format!("{:indent$}{}", "", if name == "-" { "-".to_owned() } else { key(name) + ":" });
    let line = format!("{start} {}\n", flow(value));
    if line.len() <= WIDTH && indent > 0 {
        return line;
    }
    let members: String = match value {
        Value::Object(members) => {
            members.iter().map(|(name, value)| block(name, value, indent + 2)).collect()
        }
        Value::Array(items) => items.iter().map(|item| block("-", item, indent + 2)).collect(),
        _ => return line,
    };
    format!("{start}\n{members}")
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let members = members.iter().map(|(name, value)| format!("{}: {}", key(name), flow(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        // JSON is YAML.
        scalar => scalar.to_string(),
    }
}

/// A name, in quotes if YAML would read it as a number.
fn key(name: &str) -> String {
    if name.parse::<u64>().is_ok() { format!("'{name}'") } else { name.to_owned() }
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let forms: Vec<Value> = route.replies.iter().map(|reply| schema(generator, *reply)).collect();
    let content = match forms.as_slice() {
        [] => json!({"text/event-stream": {"schema": {"type": "string"}}}),
        [one] => json!({"application/json": {"schema": one}}),
        several => json!({"application/json": {"schema": {"oneOf": several}}}),
    };
    let mut responses = json!({"200": {"description": "The reply.", "content": content}});
    let with_body = route.body.first().map(|_| 415);
    for status in [400, 401, 403].iter().chain(&with_body).chain(route.fails) {
        let name = if *status == 401 { "Unauthorized" } else { "Error" };
        responses[status.to_string()] = json!({"$ref": format!("#/components/responses/{name}")});
    }
    let mut operation = json!({"operationId": route.name, "summary": route.summary, "responses": responses});
    if !route.parameters.is_empty() {
        operation["parameters"] = route.parameters.iter().map(parameter).collect();
    }
    let content = match route.body.first() {
        Some(body) => json!({"application/json": {"schema": schema(generator, *body)}}),
        None if route.name == "addToImport" => {
            json!({"application/x-ndjson": {"schema": {"type": "string"}}})
        }
        None => return operation,
    };
    operation["requestBody"] = json!({"required": true, "content": content});
    operation
}

fn parameter(Parameter { name, about, takes }: &Parameter) -> Value {
    let schema = match takes {
        Takes::Text | Takes::Needed(_) => json!({"type": "string"}),
        Takes::Words(words) => json!({"type": "string", "enum": words, "default": words[0]}),
        Takes::OneOf(words) => json!({"type": "string", "enum": words}),
        Takes::Number { default: None, least, .. } => json!({"type": "integer", "minimum": least}),
        Takes::Number { default, least, most } => {
            json!({"type": "integer", "minimum": least, "maximum": most, "default": default})
        }
    };
    let is_needed = matches!(takes, Takes::Needed(_));
    json!({"name": name, "in": "query", "required": is_needed, "description": about, "schema": schema})
}

fn schema(generator: &mut SchemaGenerator, of: admin::SchemaOf) -> Value {
    let mut schema = of(generator).to_value();
    tidy(&mut schema);
    schema
}

/// Closes objects, and takes what serde fills in or leaves out from the description of fields.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for name in ["default", "format", "title"] {
                if fields.get(name).is_some_and(|value| name == "default" || value.is_string()) {
                    fields.remove(name);
                }
            }
            if let Some(words) = words(fields) {
                fields.insert("enum".to_owned(), words);
            }
            let required = fields.get("required").cloned().unwrap_or_default();
            if let Some(Value::Object(properties)) = fields.get_mut("properties") {
                let is_required =
                    |name: &str| required.as_array().is_some_and(|all| all.contains(&name.into()));
                properties.iter_mut().filter(|(name, _)| !is_required(name)).for_each(|(_, it)| not_null(it));
                fields.insert("additionalProperties".to_owned(), false.into());
            }
            fields.values_mut().for_each(tidy);
            if let (true, Some(target)) = (fields.len() > 1, fields.get("$ref").cloned()) {
                fields.remove("$ref");
                fields.insert("allOf".to_owned(), json!([{"$ref": target}]));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The values of a text whose description lists them: "`a`, `b` or `c`."
fn words(field: &Map<String, Value>) -> Option<Value> {
    let is_null = match field.get("type")? {
        Value::Array(types) if types.contains(&"string".into()) => types.contains(&"null".into()),
        kind if kind == "string" => false,
        _ => return None,
    };
    let listed = Regex::new("^(?:.*: )?((?:`[^`]+`(?:, | or )?){2,})\\.$").unwrap();
    let list = listed.captures(field.get("description")?.as_str()?)?.get(1)?.as_str();
    let words = list.split('`').skip(1).step_by(2).map(Value::from);
    Some(words.chain(is_null.then_some(Value::Null)).collect())
}

/// A field that may be absent is never null.
fn not_null(field: &mut Value) {
    if let Some(Value::Array(types)) = field.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = types.as_slice() {
            field["type"] = one.clone();
        }
    }
    if let Some(Value::Array(forms)) = field.get_mut("anyOf") {
        forms.retain(|form| form["type"] != "null");
        if let ([Value::Object(one)], Value::Object(fields)) = (forms.clone().as_slice(), field) {
            fields.remove("anyOf");
            fields.extend(one.clone());
        }
    }
}

fn schema_of_rules() -> Value {
    json!({"get": {
        "operationId": "getSchema",
        "summary": "The JSON Schema of rules files, for editors; it needs no token.",
        "security": [],
        "responses": {"200": {
            "description": "The schema, as `tollgate schema` prints it.",
            "content": {"application/schema+json": {"schema": {"type": "object"}}},
        }},
    }})
}
