//! Asks for AWS credentials: the variables of the environment, the security token service (STS) with the token of a
//! Kubernetes service account, the agent of a container, or the metadata service of an instance (IMDSv2).
//!
//! The settings choose the step. Errors have the words of the server and no secret.

use bytes::Bytes;
use http::{Method, Request, Uri, request::Builder, uri::PathAndQuery};
use http_body_util::Full;
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::{
    client::{Client, Reply},
    settings::{AccessKey, Authorization, CredentialStep, Iam},
    sign::pair,
};
use clock::{Rfc3339, Time};
use faults::files;
use net::Secret;
use text::cut;

/// The maximum size of a token in a file.
const MAX_TOKEN: u64 = 64 << 10;

/// The seconds for which a token of the metadata service is valid; it is used at once.
const METADATA_TOKEN: &str = "60";

pub(crate) struct Fetched {
    pub(crate) key: AccessKey,
    pub(crate) expires: Option<Time>,
}

pub(crate) async fn fetch(iam: &Iam, client: &Client) -> Result<Fetched, String> {
    match &iam.credentials {
        CredentialStep::Variables(key) => Ok(Fetched { key: key.clone(), expires: None }),
        CredentialStep::WebIdentity { token, role, session, sts } => {
            let token = read(token.clone(), "AWS_WEB_IDENTITY_TOKEN_FILE").await?;
            let form = [
                ("Action", "AssumeRoleWithWebIdentity"),
                ("Version", "2011-06-15"),
                ("RoleArn", role),
                ("RoleSessionName", session),
                ("WebIdentityToken", &token.0),
            ];
            let form = form.map(|(name, value)| pair(name, value)).join("&");
            let request = Request::post(sts).header("content-type", "application/x-www-form-urlencoded");
            of_xml(&send(client, request, form).await?)
        }
        CredentialStep::Container { uri, authorization } => {
            let token = match authorization {
                Some(Authorization::Value(token)) => Some(token.clone()),
                Some(Authorization::File(path)) => {
                    Some(read(path.clone(), "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").await?)
                }
                None => None,
            };
            let request = Request::get(uri);
            let request = match &token {
                Some(token) => request.header("authorization", &token.0),
                None => request,
            };
            of_json(&send(client, request, String::new()).await?)
        }
        CredentialStep::Instance { endpoint } => of_instance(client, endpoint).await,
    }
}

async fn of_instance(client: &Client, endpoint: &Uri) -> Result<Fetched, String> {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
    let request = |method: Method, path: &str| -> Result<Builder, String> {
        let mut parts = endpoint.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|error| error.to_string())?);
        let uri = Uri::from_parts(parts).map_err(|error| error.to_string())?;
        Ok(Request::builder().method(method).uri(uri))
    };
    let asked = request(Method::PUT, "/latest/api/token")?;
    let asked = asked.header("x-aws-ec2-metadata-token-ttl-seconds", METADATA_TOKEN);
    let token = send(client, asked, String::new()).await?;
    let get = |path: String| {
        let asked = request(Method::GET, &path);
        async { send(client, asked?.header("x-aws-ec2-metadata-token", token.trim()), String::new()).await }
    };
    let roles = get(ROLES.to_owned()).await?;
    let role = roles.lines().next().map(str::trim).filter(|role| !role.is_empty());
    let role = role.ok_or("the instance has no role: attach an instance profile")?;
    of_json(&get(format!("{ROLES}{role}")).await?)
}

/// Sends a request, and returns the text of a reply with a success.
async fn send(client: &Client, request: Builder, body: String) -> Result<String, String> {
    // The error would show the value of a header.
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|_| "the token has characters that a header cannot have".to_owned())?;
    let server = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let (status, text): Reply = client.send(request).await?;
    if status.is_success() {
        return Ok(text);
    }
    Err(format!("{server} answered {status}: {}", reason(&text)))
}

/// The words of an error: those of a field that has them, else the beginning.
fn reason(text: &str) -> String {
    let fields: Value = serde_json::from_str(text).unwrap_or_default();
    let field =
        |names: [&str; 2]| names.iter().find_map(|name| fields.get(name)?.as_str().map(str::to_owned));
    let found = [
        field(["code", "Code"]).or_else(|| tag(text, "Code")),
        field(["message", "Message"]).or_else(|| tag(text, "Message")),
    ];
    let words: Vec<_> = found.into_iter().flatten().collect();
    let words = if words.is_empty() { text.trim().to_owned() } else { words.join(": ") };
    cut(&words).escape_debug().to_string()
}

/// The text of the first element with this name in XML without attributes.
fn tag(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Some(named.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)))
}

/// The credentials in a reply of STS.
fn of_xml(text: &str) -> Result<Fetched, String> {
    fetched(|name| tag(text, if name == "Token" { "SessionToken" } else { name }))
}

/// The credentials in a reply of a container's agent or the metadata service.
fn of_json(text: &str) -> Result<Fetched, String> {
    let fields: Value = serde_json::from_str(text).map_err(|_| "expected a JSON object".to_owned())?;
    let failed = |code: &str| code != "Success";
    if fields.get("Code").and_then(Value::as_str).is_some_and(failed) {
        return Err(reason(text));
    }
    fetched(|name| fields.get(name)?.as_str().map(str::to_owned))
}

fn fetched(field: impl Fn(&str) -> Option<String>) -> Result<Fetched, String> {
    let required = |name: &str| field(name).ok_or_else(|| format!("the reply has no {name}"));
    let id = required("AccessKeyId")?;
    let secret = Secret(required("SecretAccessKey")?);
    let expires = field("Expiration").map(|text| text.parse::<Rfc3339>());
    let expires = expires.transpose().map_err(|_| "Expiration: expected a time in RFC 3339")?;
    let key = AccessKey { id, secret, session: field("Token").map(Secret) };
    Ok(Fetched { key, expires: expires.map(|Rfc3339(time)| time) })
}

/// The token in a file, which its writer replaces before it expires.
async fn read(path: std::path::PathBuf, variable: &str) -> Result<Secret, String> {
    let shown = format!("{variable}={}", path.display());
    let read = spawn_blocking(move || files::read(&path, MAX_TOKEN)).await;
    let bytes = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let bytes = bytes.map_err(|error| format!("{shown}: cannot be read: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown}: is not UTF-8"))?;
    match text.trim() {
        "" => Err(format!("{shown}: is empty")),
        token => Ok(Secret(token.to_owned())),
    }
}
