//! The Helm chart: linted, rendered with several values files, validated, and run as a pod.

use std::{collections::BTreeSet, env, fmt::Write as _, fs, process::Command};

use serde_json::{Value, json};

use support::{markdown::blocks, server::BINARY};

use super::{
    documents,
    files::{scales_sensibly, validate},
    files_below, kustomized, object, output,
    pods::{Pod, config_map, run},
    read, root, tool,
};

mod refused;

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
    assert_eq!(checked_rules(&objects), "my-rules");
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
    assert_eq!(seen, 3);
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
    // Probes run in the container, which no policy restricts.
    let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let ports: Vec<_> = container["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
    assert_eq!(ports, ["debug", "grpc", "http", "metrics"]);
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
    for text in ["   # indented\nDOMAIN\n", "DOMAIN", "# a: 'b' \"c\" {{ d }}\n\nDOMAIN\n"] {
        let text = text.replace("DOMAIN", "domain: shop\ndescriptors: [{key: k}]");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let set = format!("rules.files.shop\\.yaml={}", file.path().display());
        let objects = documents(&rendered(&["--set-file", &set]).unwrap());
        for name in ["edge-tollgate-rules", "edge-tollgate-check"] {
            let named = |object: &&Value| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name;
            assert_eq!(objects.iter().find(named).unwrap()["data"]["shop.yaml"], text, "{name}");
        }
    }
}

/// With `DEBUG_HOST=127.0.0.1`, as production.md advises, HTTP probes restarted the Pod for ever.
#[test]
fn probes_reach_a_pod_whose_http_ports_are_closed() {
    let values = format!("{CHART}/ci/memory-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    for host in ["HOST", "DEBUG_HOST"] {
        let closed = json!({"name": host, "value": "127.0.0.1"});
        assert!(container["env"].as_array().unwrap().contains(&closed), "{container}");
    }
    run(&Pod::of(&objects, "ask_until_refused shop client_id=alice"));
}

#[test]
fn ports_of_the_chart_are_those_of_its_settings() {
    let set = "rules.existingConfigMap=my-rules,settings.PORT=9000,settings.PROMETHEUS_ADDR=:9999";
    let objects = documents(&rendered(&["--set", set]).unwrap());
    let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let ports = container["ports"].as_array().unwrap();
    for (name, port) in [("http", 9000), ("metrics", 9999), ("grpc", 8081)] {
        assert!(ports.contains(&json!({"name": name, "containerPort": port})), "{ports:?}");
    }
}

/// The command of the hook, with the variables of its Job and the rules that it mounts.
#[test]
fn a_hook_checks_the_rules_and_the_settings_before_they_are_installed() {
    let checked = |values: &str, rules: &[(&str, &str)]| {
        let objects = documents(&rendered(&["--set", values, "--set-json", &files(rules)]).unwrap());
        let job = object(&objects, "Job");
        let hook = &job["metadata"]["annotations"];
        assert_eq!(hook["helm.sh/hook"], "pre-install,pre-upgrade");
        let name = checked_rules(&objects);
        let mounted =
            objects.iter().find(|object| object["metadata"]["name"] == name && object["kind"] == "ConfigMap");
        let mounted = mounted.unwrap();
        // It is there before the Job.
        assert_eq!(mounted["metadata"]["annotations"]["helm.sh/hook"], hook["helm.sh/hook"]);
        assert_eq!(mounted["metadata"]["annotations"]["helm.sh/hook-weight"], "-1");
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("ratelimit/config");
        fs::create_dir_all(&config).unwrap();
        for (file, text) in mounted["data"].as_object().unwrap() {
            fs::write(config.join(file), text.as_str().unwrap()).unwrap();
        }
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        let deployed = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!((&container["env"], &container["image"]), (&deployed["env"], &deployed["image"]));
        let words: Vec<_> =
            container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words[0], "/bin/tollgate");
        let mut command = Command::new(BINARY);
        for variable in container["env"].as_array().unwrap() {
            let value = variable["value"].as_str().unwrap();
            let value = if value == "/data" { dir.path().to_str().unwrap() } else { value };
            command.env(variable["name"].as_str().unwrap(), value);
        }
        let output = command.args(&words[1..]).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let good = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let (code, said) = checked("workers=1", &[("a.yaml", good)]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = checked(
        "settings.MERGE_DOMAIN_CONFIG=true",
        &[("a.yaml", good), ("b.yaml", &good.replace("key: k", "key: m"))],
    );
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = checked("workers=1", &[("a.yaml", &good.replace("day", "fortnight"))]);
    assert!(code == Some(1) && said.contains("fortnight"), "{said}");
    let (code, said) = checked("settings.NEAR_LIMIT_RATIO=x", &[("a.yaml", good)]);
    assert!(code == Some(2) && said.contains("NEAR_LIMIT_RATIO"), "{said}");
}

#[test]
fn a_hook_without_rules_files_checks_the_settings() {
    let values = format!("{CHART}/ci/memcached-xds-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    let command = &object(&objects, "Job")["spec"]["template"]["spec"]["containers"][0]["command"];
    assert_eq!(command, &json!(["/bin/tollgate", "settings", "--effective"]));
    let values = format!("{CHART}/ci/memcached-srv-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    assert!(objects.iter().all(|object| object["kind"] != "Job"), "rules.check is false");
}

#[test]
fn the_service_does_not_select_the_pod_of_the_hook() {
    for file in values_files() {
        let objects = documents(&rendered(&["--values", &file]).unwrap());
        let Some(job) = objects.iter().find(|object| object["kind"] == "Job") else { continue };
        let labels = &job["spec"]["template"]["metadata"]["labels"];
        let selector = object(&objects, "Service")["spec"]["selector"].as_object().unwrap();
        assert!(selector.iter().any(|(name, value)| &labels[name] != value), "{file}: {labels}");
        // The chart's own ServiceAccount does not exist before the chart is installed.
        assert!(job["spec"]["template"]["spec"]["serviceAccountName"].is_null(), "{file}");
    }
}

#[test]
fn the_alerts_and_the_dashboard_are_those_of_the_repository() {
    let values = format!("{CHART}/ci/redis-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    let rule = object(&objects, "PrometheusRule");
    // By this label the Prometheus of kube-prometheus-stack selects rules and monitors.
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let rules = read("deploy/prometheus/rules.yaml");
    let linked = rules.replace("docs/reference/runbook.md#", "https://wiki.example.com/tollgate#");
    assert_ne!(rules, linked);
    assert_eq!(rule["spec"], documents(&linked)[0]);
    let named = |object: &&Value| object["metadata"]["name"] == "ratelimit-dashboard";
    let dashboard = objects.iter().find(named).unwrap();
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    assert_eq!(dashboard["metadata"]["annotations"]["grafana_folder"], "Edge");
    assert_eq!(dashboard["data"]["tollgate.json"], read("deploy/grafana/dashboard.json"));
    // A chart reads files of its own directory alone; a package contains what the links lead to.
    for (link, target) in
        [("rules.yaml", "deploy/prometheus/rules.yaml"), ("dashboard.json", "deploy/grafana/dashboard.json")]
    {
        let link = root().join(CHART).join("files").join(link);
        assert!(
            link.is_symlink() && link.canonicalize().unwrap() == root().join(target).canonicalize().unwrap(),
            "{link:?}"
        );
    }
}

#[test]
fn replicas_are_spread_over_zones_and_nodes() {
    let objects = documents(&rendered(&["--set", "rules.existingConfigMap=my-rules"]).unwrap());
    for objects in [objects, kustomized("deploy/kubernetes"), kustomized("deploy/agent-router")] {
        let pod = &object(&objects, "Deployment")["spec"]["template"];
        let spread = pod["spec"]["topologySpreadConstraints"].as_array().unwrap();
        let keys: Vec<_> = spread.iter().map(|constraint| &constraint["topologyKey"]).collect();
        assert_eq!(keys, ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]);
        for constraint in spread {
            assert_eq!(constraint["labelSelector"]["matchLabels"], pod["metadata"]["labels"]);
        }
    }
}

#[test]
fn envoys_find_replicas_that_autoscaling_adds_and_no_statsd_is_expected() {
    let redis = "rules.existingConfigMap=my-rules,store.type=redis,store.redis.url=redis:6379";
    let scaled = format!("{redis},autoscaling.enabled=true");
    let own = format!("{scaled},settings.GRPC_MAX_CONNECTION_AGE=5m,settings.USE_STATSD=true");
    let chart = |set: &str| documents(&rendered(&["--set", set]).unwrap());
    for (objects, age, statsd) in [
        (chart(redis), None, "false"),
        (chart(&scaled), Some("30m"), "false"),
        (chart(&own), Some("5m"), "true"),
        (kustomized("deploy/kubernetes"), Some("30m"), "false"),
        (kustomized("deploy/agent-router"), Some("30m"), "false"),
    ] {
        let container = &object(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        let value = |name: &str| {
            let variables = container["env"].as_array().unwrap();
            variables
                .iter()
                .find(|variable| variable["name"] == name)
                .and_then(|variable| variable["value"].as_str())
        };
        assert_eq!((value("GRPC_MAX_CONNECTION_AGE"), value("USE_STATSD")), (age, Some(statsd)));
    }
}

/// A variable of a Pod is in the description of the Pod, and does not change while it runs.
#[test]
fn passwords_of_redis_are_mounted() {
    let values = format!("{CHART}/ci/sentinel-tls-values.yaml");
    let objects = documents(&rendered(&["--values", &values]).unwrap());
    let pod = &object(&objects, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mount = json!({"name": "redis-auth", "mountPath": "/secrets/redis", "readOnly": true});
    assert!(container["volumeMounts"].as_array().unwrap().contains(&mount), "{container}");
    let volumes = pod["volumes"].as_array().unwrap();
    let sources =
        &volumes.iter().find(|volume| volume["name"] == "redis-auth").unwrap()["projected"]["sources"];
    for (variable, key) in
        [("REDIS_AUTH", "auth"), ("REDIS_SENTINEL_AUTH", "sentinel"), ("REDIS_PERSECOND_AUTH", "second")]
    {
        let name = format!("{variable}_FILE");
        let source = json!({"secret": {"name": "redis", "items": [{"key": key, "path": name}]}});
        assert!(sources.as_array().unwrap().contains(&source), "{sources}");
        let variables = container["env"].as_array().unwrap();
        assert!(
            variables.contains(&json!({"name": name, "value": format!("/secrets/redis/{name}")})),
            "{variables:?}"
        );
        assert!(variables.iter().all(|known| known["name"] != variable), "{variables:?}");
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
    assert!(text == wanted, "{page}: TOLLGATE_WRITE_DOCS=1 cargo test --test deploy rewrites it");
}

/// The ConfigMap that the hook checks.
fn checked_rules(objects: &[Value]) -> &str {
    let volumes = object(objects, "Job")["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let rules = volumes.iter().find(|volume| volume["name"] == "rules").unwrap();
    rules["configMap"]["name"].as_str().unwrap()
}

/// `rules.files` with these files, for `--set-json`.
fn files(rules: &[(&str, &str)]) -> String {
    let files: serde_json::Map<_, _> =
        rules.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())).collect();
    format!("rules.files={}", Value::Object(files))
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
