"""Fixtures for tests that run images."""

from support.image_fixtures import base_image, container, cpu_image, docker, network, project

__all__ = ["base_image", "container", "cpu_image", "docker", "network", "project"]
