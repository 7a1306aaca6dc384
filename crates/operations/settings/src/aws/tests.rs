//! The variables of logins by IAM, and what is wrong with them.

use std::path::Path;

use super::*;
use crate::{Available, Backend, Settings};
use redis_store::settings::CredentialSource;

const ON: [(&str, &str); 5] = [
    ("REDIS_URL", "rediss://cache:6379"),
    ("REDIS_AWS_IAM_AUTH", "true"),
    ("REDIS_AWS_IAM_CACHE_NAME", "My-Cache"),
    ("REDIS_AWS_IAM_USER_ID", "app"),
    ("AWS_REGION", "us-east-1"),
];

fn settings(set: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    let env =
        |name: &str| set.iter().rev().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
    let read = Settings::read(&env, &|_: &Path| true, 1, Available::default());
    read.map(|(settings, _)| settings).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn iam(more: &[(&str, &str)]) -> Iam {
    let read = settings(&[&ON, more].concat()).unwrap_or_else(|problems| panic!("{problems:?}"));
    let Backend::Redis(redis) = read.backend else { panic!("not Redis") };
    match redis.main.credentials {
        Some(CredentialSource::Iam(iam)) => *iam,
        other => panic!("{other:?}"),
    }
}

fn problems(more: &[(&str, &str)]) -> Vec<String> {
    settings(&[&ON, more].concat()).unwrap_err()
}

#[test]
fn the_first_source_of_credentials_that_is_set_is_used() {
    let step = |more: &[(&str, &str)]| iam(more).credentials;
    let is_instance = |endpoint: &str, step| matches!(step, CredentialStep::Instance { endpoint: found } if found == endpoint);
    assert!(is_instance("http://169.254.169.254/", step(&[])));
    assert!(is_instance(
        "http://[fd00:ec2::254]/",
        step(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://[fd00:ec2::254]")])
    ));
    let ecs = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/1");
    let expected = CredentialStep::Container {
        uri: "http://169.254.170.2/v2/credentials/1".parse().unwrap(),
        authorization: None,
    };
    assert_eq!(step(&[ecs]), expected);
    let pod = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hunter2"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/var/run/token"),
    ];
    let CredentialStep::Container { uri, authorization } = step(&pod) else { panic!("{pod:?}") };
    assert_eq!(uri, "http://169.254.170.23/v1/credentials");
    assert_eq!(authorization, Some(Authorization::File("/var/run/token".into())));
    let irsa = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")];
    for (region, url) in [
        ("us-gov-west-1", "https://sts.us-gov-west-1.amazonaws.com/"),
        ("cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn/"),
    ] {
        let set = [&pod[..], &irsa, &[("AWS_REGION", region)]].concat();
        let CredentialStep::WebIdentity { session, sts, .. } = step(&set) else { panic!("{set:?}") };
        assert_eq!((&*session, sts.to_string()), ("tollgate", url.to_owned()));
    }
    let key = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
    let CredentialStep::Variables(key) = step(&[&irsa[..], &key].concat()) else { panic!("{key:?}") };
    assert_eq!((&*key.id, key.session), ("AKID", None));
}

#[test]
fn the_cache_is_named_in_lower_case_and_the_region_has_defaults() {
    let found = iam(&[]);
    assert_eq!((&*found.cache, &*found.user, &*found.region), ("my-cache", "app", "us-east-1"));
    assert_eq!((found.service, found.serverless), (Service::ElastiCache, false));
    assert_eq!(iam(&[("REDIS_AWS_IAM_REGION", "eu-west-3")]).region, "eu-west-3");
    assert_eq!(iam(&[("AWS_REGION", ""), ("AWS_DEFAULT_REGION", "eu-west-2")]).region, "eu-west-2");
    assert_eq!(iam(&[("REDIS_AWS_IAM_SERVICE", "memorydb")]).service, Service::MemoryDb);
    assert!(iam(&[("REDIS_AWS_IAM_SERVERLESS", "true")]).serverless);
}

#[test]
fn contradictions_are_reported_by_name() {
    for (more, words) in [
        (&[("REDIS_URL", "cache:6379")][..], "REDIS_TLS: expected true"),
        (
            &[("REDIS_AWS_IAM_CACHE_NAME", "")],
            "REDIS_AWS_IAM_AUTH=\"true\": expected a value of REDIS_AWS_IAM_CACHE_NAME too",
        ),
        (&[("REDIS_AWS_IAM_USER_ID", "")], "expected a value of REDIS_AWS_IAM_USER_ID too"),
        (&[("REDIS_AUTH", "hunter2")], "REDIS_AUTH: expected no value beside REDIS_AWS_IAM_AUTH"),
        (&[("REDIS_AUTH_FILE", "/a")], "REDIS_AUTH_FILE=\"/a\": expected no value beside REDIS_AWS_IAM_AUTH"),
        (&[("REDIS_URL", "rediss://u:hunter2@h")], "expected a URL without a login"),
        (&[("AWS_REGION", "")], "REDIS_AWS_IAM_REGION: expected a region such as"),
        (&[("AWS_REGION", "Frankfurt")], "AWS_REGION=\"Frankfurt\": expected a region such as"),
        (&[("AWS_REGION", "eu-central-1a")], "AWS_REGION=\"eu-central-1a\": expected a region"),
        (&[("AWS_REGION", "us-1")], "expected a region"),
        (&[("REDIS_AWS_IAM_SERVICE", "redis")], "REDIS_AWS_IAM_SERVICE=\"redis\""),
        (&[("REDIS_AWS_IAM_SERVICE", "memorydb"), ("REDIS_AWS_IAM_SERVERLESS", "1")], "no serverless"),
        (&[("AWS_ACCESS_KEY_ID", "AKID")], "AWS_SECRET_ACCESS_KEY: expected a value"),
        (&[("AWS_SECRET_ACCESS_KEY", "hunter2")], "AWS_ACCESS_KEY_ID: expected a value"),
        (&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/t")], "AWS_ROLE_ARN: expected the ARN"),
        (&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "v2")], "expected a path"),
        (&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.0.0.1/c")], "in plain text"),
        (&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "10.0.0.1/c")], "begins with http://"),
        (&[("AWS_EC2_METADATA_DISABLED", "true")], "no other variable of AWS names credentials"),
    ] {
        let found = problems(more);
        assert!(found.len() == 1 && found[0].contains(words), "{more:?}: {found:?}");
        assert!(!found[0].contains("hunter2"), "{found:?}");
    }
}

#[test]
fn the_second_redis_has_a_cache_of_its_own() {
    let second = [
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "rediss://other"),
        ("REDIS_PERSECOND_AWS_IAM_AUTH", "true"),
        ("REDIS_PERSECOND_AWS_IAM_CACHE_NAME", "other"),
        ("REDIS_PERSECOND_AWS_IAM_USER_ID", "app"),
    ];
    let read = settings(&[&ON, &second[..]].concat()).unwrap();
    let Backend::Redis(redis) = read.backend else { panic!("not Redis") };
    let Some(CredentialSource::Iam(iam)) = redis.per_second.unwrap().credentials else { panic!("no login") };
    assert_eq!(iam.cache, "other");
    let problems = problems(&second[..3]);
    assert!(
        problems.iter().any(|problem| problem.contains("a value of REDIS_PERSECOND_AWS_IAM_USER_ID")),
        "{problems:?}"
    );
}

#[test]
fn other_programs_variables_are_not_read_without_the_login() {
    let off =
        [("REDIS_AWS_IAM_AUTH", "false"), ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "x"), ("AWS_REGION", "?")];
    assert!(settings(&[&ON, &off[..]].concat()).is_ok());
}
