"""`python -m specresearch.serve +proposer=ngram`: serve a method by OpenAI's API."""

from importlib.util import find_spec

from omegaconf import DictConfig

from specresearch.cli import (
    entry_point,
    quick_imports,
    stay_offline_without_hub,
    warn_of_busy_cores,
)


def main() -> None:
    entry_point(serve, "serve")


def serve(cfg: DictConfig) -> None:
    """Serve until SIGTERM or Ctrl-C, which let running requests end."""
    with quick_imports():
        check_imports()
        from specresearch.serving.build import serve_forever

    stay_offline_without_hub(cfg)
    warn_of_busy_cores()
    serve_forever(cfg)


def check_imports() -> None:
    """Raise ValueError unless the packages of the extra `serve` are installed."""
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise ValueError(
                f"serving needs {package}; install it by pip install 'specresearch[serve]'"
            )


if __name__ == "__main__":
    main()
