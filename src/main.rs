fn main() -> std::process::ExitCode {
    ulplab::cli::main()
}
