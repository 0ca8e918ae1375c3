terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }

  # State holds no password (RDS keeps the master's in Secrets Manager), but keep it in a bucket of its own all the same:
  # terraform init -backend-config=bucket=… -backend-config=key=cloze.tfstate -backend-config=region=…
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { project = var.name }
  }
}
