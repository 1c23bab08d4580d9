fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(ulplab::cli::main() as u8)
}
