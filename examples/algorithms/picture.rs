pub(crate) fn draw() -> String {
    String::new()
}
