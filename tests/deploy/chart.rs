//! The Helm chart: linted, rendered with several values files, validated, and run as a pod.

use std::{collections::BTreeSet, env, fmt::Write as _, fs, process::Command};

use serde_json::{Value, json};

use crate::{docs::markdown::blocks, support::server::BINARY};

use super::{
    documents,
    files::{scales_sensibly, validate},
    files_below, object, output,
    pods::{Pod, config_map, run},
    read, root, tool,
};

const CHART: &str = "deploy/helm/tollgate";

#[test]
fn the_chart_passes_lint_and_its_objects_are_valid_with_every_values_file() {
    let values = values_files();
    assert!(values.len() > 4, "{values:?}");
    for file in values {
        output(helm().args(["lint", CHART, "--values", &file]));
        validate(&rendered(&["--values", &file]).unwrap());
    }
}

#[test]
fn selectors_ports_and_names_of_the_chart_agree() {
    for file in values_files() {
        let objects = documents(&rendered(&["--values", &file]).unwrap());
        let deployment = object(&objects, "Deployment");
        let pod = &deployment["spec"]["template"];
        let labels = pod["metadata"]["labels"].as_object().unwrap();
        let selected = |selector: &Value| {
            let selector = selector.as_object().unwrap();
            !selector.is_empty() && selector.iter().all(|(name, value)| labels.get(name) == Some(value))
        };
        let service = object(&objects, "Service");
        assert!(selected(&deployment["spec"]["selector"]["matchLabels"]), "{file}");
        assert!(selected(&service["spec"]["selector"]), "{file}");
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        for policy in of_kind("NetworkPolicy") {
            assert!(selected(&policy["spec"]["podSelector"]["matchLabels"]), "{file}");
        }
        for budget in of_kind("PodDisruptionBudget") {
            assert!(selected(&budget["spec"]["selector"]["matchLabels"]), "{file}");
        }
        for monitor in of_kind("ServiceMonitor") {
            let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
            assert!(
                wanted.iter().all(|(name, value)| &service["metadata"]["labels"][name] == value),
                "{file}"
            );
        }
        for scaler in of_kind("HorizontalPodAutoscaler") {
            assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], deployment["metadata"]["name"], "{file}");
            assert!(deployment["spec"]["replicas"].is_null(), "{file}");
        }
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
        for mount in mounts {
            let volumes = pod["spec"]["volumes"].as_array().unwrap();
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{file}: {mount}");
        }
    }
}

#[test]
fn every_variable_that_the_chart_sets_exists_and_is_set_once() {
    let settings = output(Command::new(BINARY).arg("settings"));
    let known: BTreeSet<&str> = settings.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for file in values_files() {
        let objects = documents(&rendered(&["--values", &file]).unwrap());
        let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let mut seen = BTreeSet::new();
        for variable in container["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            assert!(known.contains(name), "{file}: unknown variable {name}");
            assert!(seen.insert(name), "{file}: {name} is set twice");
            assert!(variable["value"].is_string() || variable["valueFrom"].is_object(), "{file}: {variable}");
        }
    }
}

#[test]
fn the_settings_that_the_chart_sets_are_accepted() {
    for (file, check) in [("memory", "MEMORY_MAX_KEYS=10000000"), ("redis", "NEAR_LIMIT_RATIO=0.75")] {
        let objects = documents(&rendered(&["--values", &format!("{CHART}/ci/{file}-values.yaml")]).unwrap());
        let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let (name, value) = check.split_once('=').unwrap();
        let variables = container["env"].as_array().unwrap();
        assert!(variables.contains(&json!({"name": name, "value": value})), "{check} in {variables:?}");
    }
}

#[test]
fn a_pod_of_the_chart_serves_the_rules_of_its_values() {
    let values = format!("{CHART}/ci/redis-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    let seen = run(&Pod::of(&objects, "ask_until_refused shop client_id=alice"));
    assert!(seen.contains("shop_client_id_alice_"), "{seen}");
}

#[test]
fn a_pod_of_the_chart_serves_the_rules_of_an_existing_config_map() {
    let set = "rules.existingConfigMap=my-rules,store.type=redis,store.redis.url=redis:6379";
    let mut objects = documents(&rendered(&["--set", set]).unwrap());
    assert!(objects.iter().all(|object| object["kind"] != "ConfigMap"), "{objects:?}");
    objects.push(config_map("my-rules", "deploy/kubernetes/rules"));
    let seen = run(&Pod::of(&objects, "ask_until_refused shop client_id=alice"));
    assert!(seen.contains("shop_client_id_alice_"), "{seen}");
}

#[test]
fn counters_in_memory_are_those_of_one_replica() {
    let redis = "store.type=redis,store.redis.url=redis:6379";
    let memcached = "store.type=memcached,store.memcached.hosts[0]=memcached:11211";
    for (set, replicas) in [
        ("replicaCount=null".to_owned(), 1),
        ("replicaCount=0".to_owned(), 0),
        (redis.to_owned(), 2),
        (memcached.to_owned(), 2),
        (format!("{redis},replicaCount=1"), 1),
        (format!("{redis},settings.BACKEND_TYPE=memory"), 1),
        ("replicaCount=3,settings.BACKEND_TYPE=redis,settings.REDIS_URL=redis:6379".to_owned(), 3),
    ] {
        let set = format!("rules.existingConfigMap=my-rules,{set}");
        let objects = documents(&rendered(&["--set", &set]).unwrap());
        assert_eq!(object(&objects, "Deployment")["spec"]["replicas"], replicas, "{set}");
    }
    for (set, part) in [
        ("replicaCount=2".to_owned(), "replicaCount: 2 replicas that count in memory"),
        ("autoscaling.enabled=true".to_owned(), "autoscaling.enabled: each replica that counts in memory"),
        (format!("{redis},replicaCount=2,settings.BACKEND_TYPE=memory"), "replicaCount"),
        (
            format!("{redis},replicaCount=2,extraEnv[0].name=BACKEND_TYPE,extraEnv[0].value=memory"),
            "replicaCount",
        ),
    ] {
        let set = format!("rules.existingConfigMap=my-rules,{set}");
        let error = rendered(&["--set", &set]).unwrap_err().replace('/', ".");
        assert!(error.contains(part) && error.contains("store.type"), "{set}: {error}");
    }
}

#[test]
fn replicas_of_the_chart_are_added_before_they_use_what_they_request() {
    for workers in [1, 4] {
        let set = format!(
            "rules.existingConfigMap=my-rules,store.type=redis,store.redis.url=redis:6379,\
             autoscaling.enabled=true,resources.requests.memory=1Gi,workers={workers}"
        );
        let objects = documents(&rendered(&["--set", &set]).unwrap());
        scales_sensibly(&objects);
        let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["resources"]["requests"]["memory"], "1Gi");
    }
}

#[test]
fn the_values_shown_in_the_readme_are_accepted() {
    let mut seen = 0;
    for block in blocks(&read(&format!("{CHART}/README.md"))) {
        if block.purpose() == Some("values") {
            let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
            fs::write(file.path(), &block.text).unwrap();
            let values = file.path().to_str().unwrap();
            validate(&rendered(&["--set", "rules.existingConfigMap=my-rules", "--values", values]).unwrap());
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
}

#[test]
fn invalid_values_are_refused_with_their_name() {
    let rules = "rules.existingConfigMap=my-rules";
    for (set, part) in [
        ("", "rules.files or rules.existingConfigMap is required"),
        ("store.type=postgres", "store.type"),
        ("store.type=redis", "store.redis.url is required"),
        ("store.type=memcached", "store.memcached.hosts or srv is required"),
        ("store.failurePolicy=open", "store.failurePolicy"),
        ("store.redis.timeout=10", "store.redis.timeout"),
        ("rules.source=xds", "rules.xds.serverUrl is required"),
        ("tls.enabled=true", "tls.existingSecret is required"),
        ("tls.requireClientCertificate=true", "tls.enabled is required"),
        ("tls.clientSubjectAltName=envoy", "tls.requireClientCertificate is required"),
        (
            "store.redis.tls.enabled=true,store.redis.tls.clientCertificate=true",
            "store.redis.tls.existingSecret",
        ),
        ("rules.xds.tls.enabled=true,rules.xds.tls.clientCertificate=true", "rules.xds.tls.existingSecret"),
        (
            "store.type=redis,store.redis.url=redis:6379,autoscaling.enabled=true,autoscaling.minReplicas=11",
            "autoscaling.minReplicas",
        ),
        ("extraEnv[0].nme=X", "missing property 'name'"),
        ("resources.request.cpu=1", "request"),
        ("replicas=3", "replicas"),
        ("workers=0", "workers"),
        ("settings.lower=x", "lower"),
        ("image.digest=latest", "image.digest"),
        ("image.repository=", "image.repository is required: there is no public image"),
        ("rules.files.a=b", "rules.files and rules.existingConfigMap exclude each other"),
        ("admin.enabled=true", "admin.existingSecret is required with admin.enabled"),
        ("admin.tls=true", "tls.enabled is required with admin.tls"),
    ] {
        let set = if set.is_empty() { set.to_owned() } else { format!("{rules},{set}") };
        // The schema's errors have paths: `/store/type`.
        let error = rendered(&["--set", &set]).unwrap_err().replace('/', ".");
        assert!(error.contains(part), "{set}: {error}");
    }
    rendered(&["--set", rules]).unwrap();
}

#[test]
fn settings_and_extra_variables_replace_those_of_other_values() {
    let set = "rules.existingConfigMap=my-rules,settings.LOG_LEVEL=debug,settings.LOG_FORMAT=json,\
               extraEnv[0].name=LOG_FORMAT,extraEnv[0].value=text";
    let objects = documents(&rendered(&["--set", set]).unwrap());
    let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let values = |name: &str| {
        let of_name = |variable: &&Value| variable["name"] == name;
        let variables = container["env"].as_array().unwrap().iter().filter(of_name);
        variables.map(|variable| variable["value"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(values("LOG_LEVEL"), ["debug"]);
    assert_eq!(values("LOG_FORMAT"), ["text"]);
    assert_eq!(values("BACKEND_TYPE"), ["memory"]);
}

#[test]
fn the_network_policy_is_on_and_opens_grpc_and_metrics_to_pods_only() {
    let objects = documents(&rendered(&["--set", "rules.existingConfigMap=my-rules"]).unwrap());
    let policy = &object(&objects, "NetworkPolicy")["spec"];
    let pods = json!([{"namespaceSelector": {}}]);
    let open = |port: &str| json!({"from": pods, "ports": [{"port": port}]});
    assert_eq!(policy["ingress"], json!([open("grpc"), open("metrics")]));
    // The address of the store is unknown, so egress is not restricted.
    assert_eq!((&policy["policyTypes"], &policy["egress"]), (&json!(["Ingress"]), &Value::Null));
    // Probes come from the node of the Pod, which no policy restricts; every other port that they use has a name here.
    let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let ports: Vec<_> = container["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(ports, ["grpc", "http", "debug", "metrics"]);
    let off = "rules.existingConfigMap=my-rules,networkPolicy.enabled=false";
    let objects = documents(&rendered(&["--set", off]).unwrap());
    assert!(objects.iter().all(|object| object["kind"] != "NetworkPolicy"), "{objects:?}");
}

#[test]
fn the_admin_api_is_open_with_tokens_and_to_named_peers_only() {
    let secret = "rules.existingConfigMap=my-rules,admin.enabled=true,admin.existingSecret=admin";
    let closed = documents(&rendered(&["--set", secret]).unwrap());
    assert_eq!(object(&closed, "NetworkPolicy")["spec"]["ingress"].as_array().unwrap().len(), 2);
    let peers = "networkPolicy.adminFrom=[{\"podSelector\": {}}]";
    let objects = documents(&rendered(&["--set", secret, "--set-json", peers]).unwrap());
    let open = json!({"from": [{"podSelector": {}}], "ports": [{"port": "admin"}]});
    assert_eq!(object(&objects, "NetworkPolicy")["spec"]["ingress"][0], open);
    let service = object(&objects, "Service")["spec"]["ports"].as_array().unwrap().clone();
    assert!(service.contains(&json!({"name": "admin", "port": 6071, "targetPort": "admin"})), "{service:?}");
    let secret = json!({"kind": "Secret", "metadata": {"name": "admin"}, "stringData": {"tokens": "ann 0123456789abcdef"}});
    let objects = [objects, vec![config_map("my-rules", "deploy/kubernetes/rules"), secret]].concat();
    // As `kubectl exec`, with the variables of the container.
    let status = "ADMIN_ADDR=:6071 ADMIN_TOKEN_FILE=/tls/admin/tokens \"$chroot\" \"$root.mounted\" /bin/tollgate status";
    let seen = run(&Pod::of(&objects, &format!("ask_until_refused shop client_id=alice; {status}")));
    assert!(seen.contains("OVER_LIMIT") && seen.contains("2 rules"), "{seen}");
}

#[test]
fn egress_rules_restrict_egress_to_them_and_dns() {
    let values = format!("{CHART}/ci/redis-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    let policy = &object(&objects, "NetworkPolicy")["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    let ports: Vec<_> = policy["egress"].as_array().unwrap().iter().map(|rule| &rule["ports"]).collect();
    let at = |port: u16| [json!({"port": port, "protocol": "UDP"}), json!({"port": port, "protocol": "TCP"})];
    assert_eq!(ports, [&json!([{"port": 6379}]), &json!([at(53), at(5353)].concat())]);
    // An address of the node (NodeLocal DNS) and a namespace of OpenShift are among the destinations.
    assert!(policy["egress"][1]["to"].is_null());
}

#[test]
fn an_empty_list_of_peers_closes_its_port() {
    for peers in ["[]", "null"] {
        let peers = format!("networkPolicy.metricsFrom={peers}");
        let set = "rules.existingConfigMap=my-rules";
        let objects = documents(&rendered(&["--set", set, "--set-json", &peers]).unwrap());
        let ingress = object(&objects, "NetworkPolicy")["spec"]["ingress"].as_array().unwrap().clone();
        assert_eq!(ingress.len(), 1, "{ingress:?}");
        assert_eq!(ingress[0]["ports"], json!([{"port": "grpc"}]));
        assert_ne!(ingress[0]["from"], json!([]));
    }
}

#[test]
fn a_rules_file_keeps_its_text() {
    for text in ["   # indented\ndomain: shop\n", "domain: shop", "# a: 'b' \"c\" {{ d }}\n\ndomain: shop\n"]
    {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let set = format!("rules.files.shop\\.yaml={}", file.path().display());
        let objects = documents(&rendered(&["--set-file", &set]).unwrap());
        assert_eq!(object(&objects, "ConfigMap")["data"]["shop.yaml"], text);
    }
}

#[test]
fn a_pod_of_the_chart_has_longer_to_stop_than_the_service_takes() {
    let set = "rules.existingConfigMap=my-rules,shutdown.delaySeconds=40,shutdown.timeoutSeconds=70";
    let objects = documents(&rendered(&["--set", set]).unwrap());
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 115);
}

#[test]
fn the_values_table_is_that_of_the_values_file() {
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    for (path, default, description) in described(&read(&format!("{CHART}/values.yaml"))) {
        assert!(!description.is_empty(), "{path} has no description");
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "| `{path}` | {} | {description} |",
            if default.is_empty() { String::new() } else { format!("`{default}`") }
        );
    }
    let page = format!("{CHART}/README.md");
    let text = read(&page);
    let (before, rest) = text.split_once("<!-- values -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /values -->").unwrap();
    let wanted = format!("{before}<!-- values -->\n\n{table}\n<!-- /values -->{after}");
    if env::var_os("TOLLGATE_WRITE_DOCS").is_some() {
        return fs::write(root().join(page), wanted).unwrap();
    }
    assert!(text == wanted, "{page}: TOLLGATE_WRITE_DOCS=1 cargo test --test all deploy:: rewrites it");
}

/// Path, default and description of each value: an object with a description is one value.
fn described(values: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut description = String::new();
    let mut described_at = None;
    for line in values.lines().skip(1) {
        let depth = (line.len() - line.trim_start().len()) / 2;
        if described_at.is_some_and(|at| depth > at)
            && !line.trim_start().starts_with('#')
            && !line.is_empty()
        {
            continue;
        }
        described_at = None;
        if let Some(comment) = line.trim_start().strip_prefix("# ") {
            description = format!("{description} {comment}");
        } else if let Some((key, default)) = line.trim_start().split_once(':') {
            path.truncate(depth);
            path.push(key.to_owned());
            let default = default.trim().trim_matches('\'');
            if !default.is_empty() || !description.is_empty() {
                let description = std::mem::take(&mut description);
                found.push((path.join("."), default.to_owned(), description.trim().to_owned()));
                described_at = Some(depth);
            }
        }
    }
    found
}

/// The values files of the tests.
fn values_files() -> Vec<String> {
    files_below(&format!("{CHART}/ci"), &["yaml"])
}

/// The rendered objects of the chart, or the error.
fn rendered(arguments: &[&str]) -> Result<String, String> {
    let mut command = helm();
    command.args(["template", CHART]);
    if !arguments.iter().any(|argument| argument.contains("image.repository")) {
        // Values files of the tests have their own.
        command.args(["--set", "image.repository=tollgate"]);
    }
    let result = command.args(arguments).current_dir(root()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if result.status.success() {
        return Ok(text(result.stdout).trim_start_matches("---\n").to_owned());
    }
    Err(text(result.stderr))
}

fn helm() -> Command {
    let mut command = tool("python");
    command.arg("tests/deploy/helm.py").current_dir(root());
    command
}
