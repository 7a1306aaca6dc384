//! Signatures of AWS' test suite, and the steps of the credential chain against stubs of their servers.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::{
    settings::{AccessKey, Authorization, CredentialStep, Service},
    sign::{Scope, presigned},
};
use clock::{ManualClock, Rfc3339};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fn key(session: Option<&str>) -> AccessKey {
    let session = session.map(|session| Secret(session.to_owned()));
    AccessKey { id: "AKIDEXAMPLE".to_owned(), secret: Secret(SECRET.to_owned()), session }
}

fn at(text: &str) -> Time {
    text.parse::<Rfc3339>().unwrap().0
}

/// Cases of <https://github.com/awslabs/aws-c-auth/tree/main/tests/aws-signing-test-suite/v4>, signed in the query.
#[test]
fn signatures_are_those_of_the_published_test_suite() {
    let unreserved = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
    for (query, session, signature) in [
        (
            &[(unreserved, unreserved)][..],
            None,
            "8e76a88a7433637b12778d5592799b29ad21ecd6cf6325051c21d86f0acda2bf",
        ),
        (&[("\u{1234}", "bar")], None, "0bdd809b1519ac4f0c1dc3540e2cc46bd0c7f778eda408b2ebf3b913d21ff600"),
        (
            &[("Param2", "value2"), ("Param1", "value1")],
            None,
            "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5",
        ),
        (&[], Some(token), "7ff2b50b376cb4d151970630573d6291dc128cc5c2a12ffb237f73cc53f67b6c"),
    ] {
        let scope = Scope {
            region: "us-east-1",
            service: "service",
            now: at("2015-08-30T12:36:00Z"),
            valid: Duration::from_secs(3600),
        };
        let url = presigned(&key(session), &scope, "example.amazonaws.com", query);
        assert!(url.ends_with(&format!("&X-Amz-Signature={signature}")), "{query:?}: {url}");
    }
}

fn iam(credentials: CredentialStep) -> Iam {
    Iam {
        user: "app".to_owned(),
        cache: "my-cache".to_owned(),
        service: Service::ElastiCache,
        serverless: true,
        region: "eu-west-1".to_owned(),
        credentials,
    }
}

/// A source at a time that the test sets.
fn source(credentials: CredentialStep, now: &str) -> (TokenSource, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(at(now)));
    let edges = Edges { clock: clock.clone(), ..Edges::system() };
    (TokenSource::new(&iam(credentials), &edges).unwrap(), clock)
}

#[tokio::test]
async fn a_password_is_a_request_to_connect() {
    let (source, _) = source(CredentialStep::Variables(key(Some("a/b+c="))), "2026-11-27T10:00:00Z");
    source.renew().await;
    let Secret(token) = source.token().await.unwrap();
    let expected = "my-cache/?Action=connect&ResourceType=ServerlessCache&User=app&X-Amz-Algorithm=AWS4-HMAC-SHA256\
        &X-Amz-Credential=AKIDEXAMPLE%2F20261127%2Feu-west-1%2Felasticache%2Faws4_request\
        &X-Amz-Date=20261127T100000Z&X-Amz-Expires=900&X-Amz-Security-Token=a%2Fb%2Bc%3D\
        &X-Amz-SignedHeaders=host&X-Amz-Signature=";
    assert!(token.starts_with(expected) && !token.contains(SECRET), "{token}");
}

/// An HTTP server that answers each request by `answer`: a head and body in, a status and body out.
async fn stub(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let requests = seen.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let text = loop {
                socket.read_buf(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    break text;
                }
            };
            let (status, body) = answer(&text);
            requests.lock().unwrap().push(text);
            let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            socket.write_all(reply.as_bytes()).await.unwrap();
        }
    });
    (address, seen)
}

const JSON: &str = r#"{"Code": "Success", "AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t",
    "Expiration": "2026-11-27T11:00:00Z"}"#;

const XML: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
    <AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t&amp;</SessionToken>\
    <Expiration>2026-11-27T11:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
    </AssumeRoleWithWebIdentityResponse>";

fn file(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("token");
    fs::write(&path, text).unwrap();
    path
}

fn web_identity(token: PathBuf, sts: &str) -> CredentialStep {
    let (role, session) = ("arn:aws:iam::1:role/r".to_owned(), "tollgate".to_owned());
    CredentialStep::WebIdentity { token, role, session, sts: sts.parse().unwrap() }
}

#[tokio::test]
async fn sts_gives_credentials_for_the_token_of_a_service_account() {
    let dir = tempfile::tempdir().unwrap();
    let (sts, seen) = stub(|_| (200, XML.to_owned())).await;
    let (source, _) = source(web_identity(file(&dir, "a.b.c\n"), &sts), "2026-11-27T10:00:00Z");
    source.renew().await;
    let Secret(token) = source.token().await.unwrap();
    assert!(token.contains("=ASIA1%2F") && token.contains("X-Amz-Security-Token=t%26&"), "{token}");
    let seen = seen.lock().unwrap().join("\n");
    assert!(seen.starts_with("POST / HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=tollgate"), "{seen}");
    assert!(seen.ends_with("&WebIdentityToken=a.b.c"), "{seen}");
}

#[tokio::test]
async fn a_containers_agent_is_sent_the_token_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, seen) = stub(|_| (200, JSON.to_owned())).await;
    let authorization = Some(Authorization::File(file(&dir, "hunter2")));
    let uri = format!("{agent}/v1/credentials").parse().unwrap();
    let (source, _) = source(CredentialStep::Container { uri, authorization }, "2026-11-27T10:00:00Z");
    source.renew().await;
    assert!(source.token().await.unwrap().0.contains("=ASIA1%2F"));
    let seen = seen.lock().unwrap().join("\n");
    assert!(seen.starts_with("GET /v1/credentials HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("authorization: hunter2\r\n"), "{seen}");
}

#[tokio::test]
async fn an_instance_is_asked_with_a_session_token() {
    let (endpoint, seen) = stub(|request| {
        let has_token = request.contains("x-aws-ec2-metadata-token: session\r\n");
        match request.split(' ').nth(1) {
            Some("/latest/api/token") if request.starts_with("PUT") => (200, "session".to_owned()),
            Some("/latest/meta-data/iam/security-credentials/") if has_token => (200, "role-1\n".to_owned()),
            Some("/latest/meta-data/iam/security-credentials/role-1") if has_token => (200, JSON.to_owned()),
            _ => (401, String::new()),
        }
    })
    .await;
    let step = CredentialStep::Instance { endpoint: endpoint.parse().unwrap() };
    let (source, _) = source(step, "2026-11-27T10:00:00Z");
    source.renew().await;
    assert!(source.token().await.unwrap().0.contains("=ASIA1%2F"));
    assert_eq!(seen.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn credentials_are_renewed_before_they_expire_and_used_until_then() {
    let answers = Arc::new(Mutex::new((200, JSON.to_owned())));
    let answer = answers.clone();
    let (agent, seen) = stub(move |_| answer.lock().unwrap().clone()).await;
    let step = CredentialStep::Container { uri: agent.parse().unwrap(), authorization: None };
    let (source, clock) = source(step, "2026-11-27T10:00:00Z");
    let asked = || seen.lock().unwrap().len();
    source.renew().await;
    clock.set(at("2026-11-27T10:53:00Z"));
    source.renew().await;
    assert_eq!(asked(), 1, "the credentials are valid for an hour");
    *answers.lock().unwrap() = (500, "{\"message\": \"try later\"}".to_owned());
    clock.set(at("2026-11-27T10:56:30Z"));
    source.renew().await;
    source.renew().await;
    assert_eq!(asked(), 2, "a failed request is not repeated at once");
    assert!(source.token().await.is_ok(), "the old credentials are still valid");
    clock.set(at("2026-11-27T11:00:00Z"));
    let expired = source.token().await.unwrap_err();
    assert!(expired.contains("try later"), "{expired}");
    *answers.lock().unwrap() = (200, JSON.replace("T11", "T12").replace("ASIA1", "ASIA2"));
    source.renew().await;
    assert!(source.token().await.unwrap().0.contains("=ASIA2%2F"));
}

#[tokio::test]
async fn an_error_has_the_step_and_the_words_of_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let denied = "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>Not authorized to perform \
        sts:AssumeRoleWithWebIdentity</Message></Error></ErrorResponse>";
    let agents = r#"{"code": "InvalidParameter", "message": "no association"}"#;
    let huge = "x".repeat(100_000);
    for (status, body, words) in [
        (403, denied, "403 Forbidden: AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity"),
        (400, agents, "400 Bad Request: InvalidParameter: no association"),
        (200, "<html>", "the reply has no AccessKeyId"),
        (502, "bad\x1b[31m gateway", "502 Bad Gateway: bad\\u{1b}[31m gateway"),
        (200, &huge, "length limit exceeded"),
    ] {
        let body = body.to_owned();
        let (sts, _) = stub(move |_| (status, body.clone())).await;
        let (source, _) = source(web_identity(file(&dir, "hunter2"), &sts), "2026-11-27T10:00:00Z");
        source.renew().await;
        let error = source.token().await.unwrap_err();
        assert!(error.starts_with("AWS credentials from AWS_WEB_IDENTITY_TOKEN_FILE (STS): "), "{error}");
        assert!(error.contains(words) && !error.contains("hunter2"), "{words}: {error}");
    }
    let nowhere = "http://127.0.0.1:1";
    for (step, words) in [
        (
            web_identity("/absent".into(), nowhere),
            "AWS_WEB_IDENTITY_TOKEN_FILE=/absent: cannot be read: No such file",
        ),
        (web_identity(file(&dir, ""), nowhere), "is empty"),
        (
            CredentialStep::Instance { endpoint: nowhere.parse().unwrap() },
            "metadata service: 127.0.0.1:1: Connection refused",
        ),
    ] {
        let (source, _) = source(step, "2026-11-27T10:00:00Z");
        source.renew().await;
        let error = source.token().await.unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn keys_are_not_printed() {
    let shown = format!("{:?}", iam(CredentialStep::Variables(key(Some("hunter2")))));
    assert!(!shown.contains(SECRET) && !shown.contains("hunter2"), "{shown}");
}
