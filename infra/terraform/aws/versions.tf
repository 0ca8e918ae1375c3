terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }

  # The state contains no password (RDS stores it in Secrets Manager). Keep the state in a separate bucket anyway:
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
